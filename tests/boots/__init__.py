"""Real firmware boots what gitboot publishes: QEMU, in a network of its own with the DHCP that gitboot configures.

`network` is the wire, `machine` one machine on it, `images` what it boots (`kernel`, `initramfs`, `uki`, `disks`),
`fleet` the repository, `site` a running gitboot with loaders, DHCP, TFTP and mirrors around it, `bmc` what powers a
machine as Redfish says, `interpreter` an iPXE that runs scripts, `page` docs/boots.md. All of it needs `packages.txt`
and root; `make test-boot` runs it, `make test` leaves it out.
"""
