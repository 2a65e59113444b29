"""Real firmware boots what gitboot publishes: QEMU, in a network of its own with the DHCP that gitboot configures.

`network` is the wire, `dhcp` who gives addresses on it, `machine` one machine on it, `images` what that boots
(`kernel`, `initramfs`, `uki`, `disks`), `architectures` how both differ, `debian` the packages that they are made of,
`fleet` the repository, `site` a running gitboot with loaders, DHCP, TFTP and mirrors around it, `bmc` what powers a
machine as Redfish says, `interpreter` an iPXE that runs scripts, `page` docs/boots.md. All of it needs `packages.txt`
and root; `make test-boot` runs it, `make test` leaves it out.
"""
