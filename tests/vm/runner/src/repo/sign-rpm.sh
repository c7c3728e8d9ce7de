set -eu
# Indexes and signs one dnf repository, and prepares the replacements that are served during faults.
#   ROOT      directory of the repository, with unsigned packages
#   NAME      user id of its key                STRANGER   user id of another key
#   WRONG_KEY, HALF_SYNCED, UNSIGNED            directories that are served during these faults
sign_packages() { # key, directory
    find "$2" -name '*.rpm' -print0 |
        xargs -0 -r rpmsign --define "__gpg $(command -v gpg)" --define "_gpg_name $1" --define '_gpg_digest_algo sha256' --addsign >/dev/null
}
index() { # directory, key of the metadata
    # As EPEL 8 and 9.
    createrepo_c --quiet --no-database --general-compress-type=xz "$1"
    if [ -s "$WORK/modules.yaml" ]; then
        modifyrepo_c --mdtype=modules "$WORK/modules.yaml" "$1/repodata" >/dev/null
    fi
    gpg --batch --quiet --local-user "$2" --armor --detach-sign --output "$1/repodata/repomd.xml.asc" "$1/repodata/repomd.xml"
}
copy() { # directory: the packages of the repository except the large ones
    (cd "$ROOT" && find . -name '*.rpm' -size -10M -exec cp --parents {} "$1" \;)
}
copy "$UNSIGNED"
index "$UNSIGNED" "$NAME"
copy "$WRONG_KEY"
sign_packages "$STRANGER" "$WRONG_KEY"
index "$WRONG_KEY" "$STRANGER"
sign_packages "$NAME" "$ROOT"
index "$ROOT" "$NAME"
# The signed index lists metadata files that do not exist yet.
mkdir "$WORK/newer"
copy "$WORK/newer"
find "$WORK/newer" -name "*.rpm" | head -n 1 | xargs -r rm
index "$WORK/newer" "$NAME"
mkdir -p "$HALF_SYNCED/repodata"
cp "$WORK/newer/repodata"/repomd.xml* "$HALF_SYNCED/repodata/"
