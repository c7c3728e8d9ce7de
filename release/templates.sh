#!/bin/sh
# Fills in the URL and the SHA-256 of a binary in a copy of the user-data templates: release/templates.sh PROGRAM DIRECTORY.
# GPU_BOOTSTRAP_RELEASE_URL is the URL. Without it, the templates keep both placeholders. So do comments.
set -eu
program=$1 directory=$2
url=${GPU_BOOTSTRAP_RELEASE_URL:-}
[ -n "$url" ] || exit 0
digest=$(sha256sum "$program")
# The URL contains no `|` (release/build.sh).
find "$directory" -type f -exec sed -i "/^ *#/!{s|@ADDRESS@|$url|g; s|@SHA-256@|${digest%% *}|g}" {} +
