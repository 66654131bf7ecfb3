#!/bin/sh
# Makes a machine of its own in new namespaces, and becomes its process 1; says "made" on stdout before that.
#
#   unshare --mount --pid --ipc --uts --net --fork --kill-child sh machine.sh FOLDER PYTHON PATHS CGROUP PROGRAM...
#
# FOLDER is an empty one, PYTHON a prefix, PATHS what it imports from, separated by colons. Without a CGROUP there is
# none. All that is seen of the machine outside is mounted read-only, and the rest of it is out of reach, before PROGRAM
# starts: systemd clears /tmp and sets what the kernel has only once.
set -eu
[ $$ = 1 ] || exit 1 # outside of namespaces it would take the machine apart
root=$1 prefix=$2 paths=$3 cgroup=$4
shift 4
program=$(basename "$(readlink -f "$prefix/bin/python3")")

mount --make-rprivate /
mount -t tmpfs -o mode=0755 tmpfs "$root"
cd "$root"
mkdir -p usr etc/systemd/system run proc sys dev var/lib opt/python outside
mkdir -m 1777 tmp
# What is no mount, systemd would mount itself, and so meet the devices and control groups of everybody.
mount -t tmpfs tmpfs dev
mount -t tmpfs tmpfs sys
mkdir -p dev/shm sys/fs/cgroup
mount -t tmpfs tmpfs sys/fs/cgroup
for name in bin sbin lib lib64; do
    [ ! -e "/$name" ] || ln -s "usr/$name" "$name"
done
if [ -n "$cgroup" ]; then
    mkdir cgroups
    mount -t cgroup2 cgroup2 cgroups
    mkdir "cgroups/$cgroup"
    echo 0 > "cgroups/$cgroup/cgroup.procs"
    umount cgroups
    rmdir cgroups
fi

bound="/usr /opt/python /proc/sys"
show() {
    mount --bind "$1" "$2"
    mount -o remount,bind,ro "$2"
}
show /usr usr
show "$prefix" opt/python
imports= count=0
IFS=:
for path in $paths; do
    count=$((count + 1))
    mkdir "opt/$count"
    show "$path" "opt/$count"
    imports=$imports:/opt/$count bound="$bound /opt/$count"
done
unset IFS
mount -t tmpfs tmpfs usr/local
mkdir usr/local/bin usr/local/libexec
cat > usr/local/bin/opsq << EOF
#!/bin/sh
PYTHONPATH=${imports#:} LD_LIBRARY_PATH=/opt/python/lib exec /opt/python/bin/$program -P -m opsq "\$@"
EOF
chmod 0755 usr/local/bin/opsq
printf 'root:x:0:0::/:/bin/sh\n' > etc/passwd
printf 'root:x:0:\n' > etc/group
: > etc/machine-id
mount -t proc proc proc
show proc/sys proc/sys
while read -r name major minor; do
    mknod -m 0666 "dev/$name" c "$major" "$minor"
done << EOF
null 1 3
zero 1 5
full 1 7
random 1 8
urandom 1 9
tty 5 0
EOF
ln -s pts/ptmx dev/ptmx
pivot_root . outside
cd /
umount -l /outside
rmdir /outside
for path in $bound; do
    if [ -w "$path" ]; then
        echo "$path could be written to" >&2
        exit 1
    fi
done
if [ -n "$cgroup" ]; then
    set -- unshare --cgroup sh -ec 'mount -t cgroup2 cgroup2 /sys/fs/cgroup; echo made; exec "$@" > /dev/null' sh "$@"
else
    echo made
fi
exec env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
