#!/bin/sh
# Makes what the virtual machine boots, in the empty directory $1: `vmlinux`, Debian's kernel, and `initramfs`, a small
# Debian of RDMA tools in memory with `init.sh` and `link-up.sh` of the directory $2. Takes packages from where apt gets
# them, and nothing of the system that it runs on but apt, dpkg, kmod and xz.
set -eu
made=$1
scripts=$2

packages="busybox-static dash kmod libc6 libgcc-s1 iproute2 tcpdump libibverbs1 ibverbs-providers ibverbs-utils
    librdmacm1 rdmacm-utils perftest"
modules="virtio_pci virtio_console 9p 9pnet_virtio rdma_rxe ib_uverbs rdma_ucm crc32_pclmul crc32c_intel veth bridge
    sch_netem sch_tbf"

mkdir "$made/debs" "$made/debs/partial" "$made/kernel" "$made/root"
: >"$made/nothing-installed"

# The newest kernel of the distribution. Only its image and modules are used, so it is not installed.
kernel=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1)
[ -n "$kernel" ] || { echo "apt knows no linux-image-amd64" >&2; exit 1; }
(cd "$made/debs" && apt-get -q -o APT::Sandbox::User=root download "$kernel")
dpkg-deb -x "$made/debs/$kernel"_*.deb "$made/kernel"
rm "$made/debs/$kernel"_*.deb

# As if nothing were installed: then apt fetches the dependencies too.
# shellcheck disable=SC2086 # a list
apt-get -q -y -o APT::Sandbox::User=root -o APT::Install-Recommends=false \
    -o Dir::State::status="$made/nothing-installed" -o Dir::Cache::archives="$made/debs" \
    --download-only install $packages

# Packages of this release still have /bin and /usr/bin.
for dir in bin sbin lib lib64; do
    mkdir -p "$made/root/usr/$dir"
    ln -s "usr/$dir" "$made/root/$dir"
done
for deb in "$made"/debs/*.deb; do
    dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink -C "$made/root"
done
ln -sf dash "$made/root/bin/sh" # busybox's own prefers its applets to the commands of the same names
mkdir -p "$made/root/etc"
printf '%s\n' root:x:0:0::/tmp:/bin/sh tcpdump:x:0:0::/:/bin/sh >"$made/root/etc/passwd" # tcpdump drops its rights to it
rm -rf "$made/root/usr/share" "$made/root/usr/lib/systemd" "$made"/root/usr/lib/*/gconv "$made"/root/usr/lib/*/perl*

# The kernel's modules that are needed, and those that these need.
release=$(ls "$made/kernel/lib/modules")
depmod -b "$made/kernel" "$release"
mkdir -p "$made/root/lib/modules/$release"
# shellcheck disable=SC2086 # a list
modprobe -d "$made/kernel" -S "$release" --show-depends -a $modules | sed -n 's/^insmod \([^ ]*\).*/\1/p' | sort -u |
    while read -r module; do
        inside=$made/root${module#"$made/kernel"}
        mkdir -p "$(dirname "$inside")"
        cp "$module" "$inside"
    done
cp "$made/kernel/lib/modules/$release"/modules.builtin* "$made/kernel/lib/modules/$release/modules.order" \
    "$made/root/lib/modules/$release/"
depmod -b "$made/root" "$release"

# Unpacked here rather than at each boot, which saves seconds where the machine is emulated. The offsets are those of
# Linux's boot protocol (Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length).
image=$(ls "$made"/kernel/boot/vmlinuz-*)
number() { od -An -t "u$2" -j "$1" -N "$2" "$image" | tr -d ' '; }
start=$((($(number 497 1) + 1) * 512 + $(number 584 4)))
tail -c +$((start + 1)) "$image" | head -c "$(number 588 4)" | xz -dc --single-stream >"$made/vmlinux"

cp "$scripts/init.sh" "$made/root/init"
mkdir "$made/root/vm"
cp "$scripts/link-up.sh" "$made/root/vm/link-up"
chmod 755 "$made/root/init" "$made/root/vm/link-up"
(cd "$made/root" && find . | ./bin/busybox cpio -o -H newc) >"$made/initramfs"
rm -rf "$made/debs" "$made/kernel" "$made/root" "$made/nothing-installed"
