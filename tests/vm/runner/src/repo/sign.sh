set -eu
# Indexes and signs one repository, and prepares what its faults serve instead.
#   ROOT      directory of the repository       POOL, RELEASE, LISTS  directories, see table.rs
#   NAME      user id of its key                STRANGER              user id of another key
#   WRONG_KEY, HALF_SYNCED                      directories of what these faults serve
release() {
    apt-ftparchive -o "APT::FTPArchive::Release::Origin=$ORIGIN" -o "APT::FTPArchive::Release::Label=$LABEL" \
        -o "APT::FTPArchive::Release::Suite=$SUITE" -o "APT::FTPArchive::Release::Codename=$SUITE" \
        -o "APT::FTPArchive::Release::Components=$COMPONENT" \
        -o "APT::FTPArchive::Release::Architectures=amd64" release "$1"
}
sign() { # key, folder of the Release file, folder of the signatures
    mkdir -p "$3"
    gpg --batch --quiet --local-user "$1" --clearsign --output "$3/InRelease" "$2/Release"
    gpg --batch --quiet --local-user "$1" --armor --detach-sign --output "$3/Release.gpg" "$2/Release"
}
cd "$ROOT"
mkdir -p "$RELEASE/$LISTS" "$POOL"
apt-ftparchive packages "$POOL" >"$WORK/Packages"
mv "$WORK/Packages" "$RELEASE/$LISTS/Packages"
gzip --keep "$RELEASE/$LISTS/Packages"
release "$RELEASE" >"$WORK/Release"
mv "$WORK/Release" "$RELEASE/Release"
sign "$NAME" "$RELEASE" "$RELEASE"
sign "$STRANGER" "$RELEASE" "$WRONG_KEY/$RELEASE"
# The signed index describes a state with one more package.
mkdir -p "$WORK/newer/$LISTS" "$HALF_SYNCED/$RELEASE"
{
    cat "$RELEASE/$LISTS/Packages"
    printf 'Package: newest\nVersion: 1\nArchitecture: amd64\nFilename: ./newest_1_amd64.deb\nSize: 1\nSHA256: %064d\n\n' 0
} >"$WORK/newer/$LISTS/Packages"
gzip --keep "$WORK/newer/$LISTS/Packages"
release "$WORK/newer" >"$HALF_SYNCED/$RELEASE/Release"
sign "$NAME" "$HALF_SYNCED/$RELEASE" "$HALF_SYNCED/$RELEASE"
rm -r "$WORK/newer"
