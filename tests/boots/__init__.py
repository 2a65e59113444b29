"""Real firmware boots what gitboot publishes: QEMU, in its own network with the DHCP that gitboot configures.

`network` is the wire, `dhcp` the DHCP servers on it, `dhcp_client` a client that shows their answers, `machine` one
machine on it, `other_rom` a network card for it that is not iPXE, `images` the files that machines boot (`kernel`,
`initramfs`, `uki`, `disks`), `architectures` their differences, `debian` the packages from which they are built,
`fleet` the repository, `site` a running gitboot with loaders, DHCP, TFTP and mirrors around it, `bmc` the power of a
machine by Redfish, `interpreter` an iPXE that runs scripts, and `page` boots.md. All of it needs `packages.txt`
and root. `make test-boot` runs these tests; `make test` omits them.
"""
