#!/bin/sh
# Checks that this commit can be released: release/tag.sh [TAG]. If the commit has a version tag, or if TAG is given, the tag must
# be at this commit and have the version of Cargo.toml, no file may differ from the commit, the changelog must contain the
# version, and release/publisher must be complete. A commit without a version tag can be built, but is not a release. RELEASE_URL,
# the URL where the files will be published, also requires a complete release/publisher.
set -eu
cd "$(dirname "$0")/.."
fail() {
    echo "tag.sh: $1" >&2
    exit 1
}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
tag=${1:-$(git tag --points-at HEAD --list 'v[0-9]*')}

# shellcheck source=release/publisher
. release/publisher
missing=
case $MAINTAINER in '' | *.invalid\>) missing=' MAINTAINER' ;; esac
[ -n "$REPOSITORY" ] || missing="$missing REPOSITORY"
[ -n "$PUBLIC_KEY" ] || missing="$missing PUBLIC_KEY"
if [ -n "$missing" ]; then
    missing="release/publisher has no value or a placeholder:$missing"
    [ -z "$tag${RELEASE_URL:-}" ] || fail "$missing"
    echo "tag.sh: WARNING: do not publish this build: $missing" >&2
fi

if [ -z "$tag" ]; then
    echo "tag.sh: this commit has no tag v$version: the build is not a release"
    exit 0
fi
[ "$tag" = "v$version" ] || fail "the tag is $tag, but Cargo.toml contains version $version"
[ "$(git rev-parse --verify --quiet "refs/tags/$tag^{commit}")" = "$(git rev-parse HEAD)" ] || fail "$tag is not at this commit"
[ -z "$(git status --porcelain)" ] || fail "some files differ from the commit, see \`git status\`"
grep -qxF "## $version" CHANGELOG.md || fail "CHANGELOG.md contains no line \`## $version\`"
echo "tag.sh: release $tag"
