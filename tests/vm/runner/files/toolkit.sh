#!/bin/sh
# Part of the test harness: compiles NVIDIA's container toolkit from its Go module, packs it with its own packaging files
# under NVIDIA's names, and leaves the packages in the directory `packages` of the current one: toolkit
# DIRECTORY-OF-THE-MODULE MODULE VERSION REVISION
set -eu
here=$PWD
directory=$1
module=$2
version=$3
packed=$3-$4
mkdir -p work/source packages

set --
for name in nvidia-ctk nvidia-container-runtime nvidia-container-runtime-hook nvidia-cdi-hook; do
    set -- "$@" "$module/cmd/$name@v$version"
done
# NVML's header marks functions as deprecated, but the bindings use all of them.
GOBIN=$here/work/source CGO_CFLAGS='-O2 -Wno-deprecated-declarations' \
    timeout 900 go install -ldflags "-s -w -X $module/internal/info.version=$version" "$@" || {
    echo "cannot compile the container toolkit" >&2
    exit 1
}

# Does the same as NVIDIA's `docker/Dockerfile.debian`: its `debian` directory, its units and rules next to the binaries, a
# changelog entry, dpkg-buildpackage.
(
    cd "$here/work/source"
    cp -r "$directory/packaging/debian" debian
    cp "$directory"/deployments/systemd/* "$directory"/deployments/udev/* .
    chmod -R u+w .
    sed -i '/^Package: nvidia-container-toolkit-operator-extensions/,$d' debian/control
    rm debian/nvidia-container-toolkit-operator-extensions.install
    # The upstream rules set mode 644 on the package's own root directory, by an expansion that names two packages at
    # once. This corrects the mode.
    printf '\tchmod 755 debian/nvidia-container-toolkit\n' >>debian/rules
    cat >debian/changelog <<END
nvidia-container-toolkit ($packed) bookworm; urgency=medium

  * Built from the Go module by the test bed.

 -- Test bed <test-bed@example.invalid>  Thu, 01 Jan 2026 00:00:00 +0000
END
    # Packed once, unpacked in most cases: 22 s and 0.8 s of CPU time with xz, 0.3 s and 0.1 s with zstd.
    export MODULE="$directory" VERSION="$packed" SECTION='' DISTRIB=bookworm DPKG_DEB_COMPRESSOR_TYPE=zstd
    sh debian/prepare 2>/dev/null || bash debian/prepare
    dpkg-buildpackage -b -us -uc -d
)

# libnvidia-container is written in C and not available as a module: NAME [DEPENDENCY]
fake() {
    cd "$here/work"
    mkdir -p "$1/usr/share/doc/$1" "$1/DEBIAN"
    echo 'An empty fake of the gpu-bootstrap test bed.' >"$1/usr/share/doc/$1/README.stand-in"
    cat >"$1/DEBIAN/control" <<END
Package: $1
Version: $packed
Architecture: amd64
Section: libs
Priority: optional
Maintainer: Test bed <test-bed@example.invalid>
${2:+Depends: $2
}Description: fake of the gpu-bootstrap test bed
 libnvidia-container has no Go module, and machines under test use CDI, which needs none of it.
END
    dpkg-deb --build --root-owner-group "$1" .
}
fake libnvidia-container1
program=$here/work/libnvidia-container-tools/usr/bin/nvidia-container-cli
mkdir -p "$(dirname "$program")"
cat >"$program" <<'END'
#!/bin/sh
echo "nvidia-container-cli: a fake of the test bed, only CDI works here" >&2
exit 1
END
chmod 755 "$program"
fake libnvidia-container-tools "libnvidia-container1 (>= $packed)"

mv "$here"/work/*.deb "$here/packages/"
rm -rf "$here/work"
