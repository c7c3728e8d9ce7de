set -eu
# Indexes and signs one repository, and prepares the replacements that are served during faults.
#   ROOT      directory of the repository       SUITES, COMPONENTS    both are empty if it is flat
#   NAME      user id of its key                STRANGER              user id of another key
#   WRONG_KEY, HALF_SYNCED                      directories that are served during these faults
release() { # directory, suite
    apt-ftparchive -o "APT::FTPArchive::Release::Origin=$ORIGIN" -o "APT::FTPArchive::Release::Label=$LABEL" \
        -o "APT::FTPArchive::Release::Suite=$2" -o "APT::FTPArchive::Release::Codename=${2%%-*}" \
        -o "APT::FTPArchive::Release::Components=$COMPONENTS" \
        -o "APT::FTPArchive::Release::Architectures=amd64" release "$1"
}
sign() { # key, directory of the Release file, directory of the signatures
    mkdir -p "$3"
    gpg --batch --quiet --local-user "$1" --clearsign --output "$3/InRelease" "$2/Release"
    gpg --batch --quiet --local-user "$1" --armor --detach-sign --output "$3/Release.gpg" "$2/Release"
}
lists() { # pool, directory of the lists
    mkdir -p "$2" "$1"
    apt-ftparchive packages "$1" >"$WORK/Packages"
    mv "$WORK/Packages" "$2/Packages"
    gzip --keep "$2/Packages"
}
finish() { # suite, its directory, a directory of lists below it
    release "$2" "$1" >"$WORK/Release"
    mv "$WORK/Release" "$2/Release"
    sign "$NAME" "$2" "$2"
    sign "$STRANGER" "$2" "$WRONG_KEY/$2"
    # The signed index describes a state with one more package.
    mkdir -p "$WORK/newer/$3" "$HALF_SYNCED/$2"
    {
        cat "$2/$3/Packages"
        printf 'Package: newest\nVersion: 1\nArchitecture: amd64\nFilename: ./newest_1_amd64.deb\nSize: 1\nSHA256: %064d\n\n' 0
    } >"$WORK/newer/$3/Packages"
    gzip --keep "$WORK/newer/$3/Packages"
    release "$WORK/newer" "$1" >"$HALF_SYNCED/$2/Release"
    sign "$NAME" "$HALF_SYNCED/$2" "$HALF_SYNCED/$2"
    rm -r "$WORK/newer"
}
cd "$ROOT"
if [ -z "$SUITES" ]; then
    lists . .
    finish "" . .
fi
for suite in $SUITES; do
    for component in $COMPONENTS; do
        lists "dists/$suite/pool/$component/amd64" "dists/$suite/$component/binary-amd64"
    done
    finish "$suite" "dists/$suite" "${COMPONENTS%% *}/binary-amd64"
done
