#!/bin/sh
# Part of the test harness: builds a disk from a root filesystem, with the boot loader and `qemu-img` of QEMU's root:
# disk-image ROOT DIRECTORY QEMU FILE. The boot loader is the same as in Debian's images. It is at the default path, where
# the firmware looks without a boot entry.
set -eu
cp -a --reflink=auto -- "$1/root" "$2/root"
truncate -s 6G "$2/disk.raw"
printf 'label: gpt\nstart=1MiB, size=63MiB, type=uefi\nstart=64MiB, size=6078MiB, type=linux\n' |
    sfdisk -q "$2/disk.raw"
truncate -s 63M "$2/esp.img"
mkfs.vfat -n ESP "$2/esp.img" >/dev/null
mmd -i "$2/esp.img" ::EFI ::EFI/BOOT ::EFI/debian
mcopy -i "$2/esp.img" "$3/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed" ::EFI/BOOT/BOOTX64.EFI
mcopy -i "$2/esp.img" - ::EFI/debian/grub.cfg <<'END'
search --no-floppy --set=root --label root
linux /vmlinuz root=LABEL=root rw console=ttyS0 loglevel=4 systemd.show_status=yes panic=-1
initrd /initrd.img
boot
END
dd if="$2/esp.img" of="$2/disk.raw" bs=1M seek=1 conv=notrunc,sparse status=none
mke2fs -q -t ext4 -L root -E offset=67108864 -d "$2/root" "$2/disk.raw" 6078M
mount --bind "$2" "$3/mnt"
chroot "$3" qemu-img convert -f raw -O qcow2 /mnt/disk.raw "/mnt/$4"
umount "$3/mnt"
rm -r "$2/root" "$2/disk.raw" "$2/esp.img"
cd "$2"
sha256sum "$4" >SHA256SUMS
