#!/bin/busybox sh
# The first process of a laboratory machine: loads the modules, lays a tmpfs over the host's read-only root, and goes there.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for m in $($b cat /modules/order); do $b insmod "/modules/$m" || echo "insmod $m failed"; done
$b mkdir -p /lower /rw
$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=1048576 root /lower
$b mount -t tmpfs tmpfs /rw
$b mkdir /rw/up /rw/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/rw/up,workdir=/rw/work overlay /newroot
for d in proc sys dev; do $b mount --move /$d /newroot/$d; done
$b mkdir -p /newroot/dev/shm
$b mount -t tmpfs shm /newroot/dev/shm
$b mount -t tmpfs run /newroot/run
$b mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=1048576 share /newroot/mnt
exec $b switch_root /newroot /bin/sh /mnt/.lab/guest.sh
