#!/bin/sh
# Prints the size of the project in lines, without blank lines and comments (`make size`): tests/size.sh [COMMIT]. Without COMMIT,
# counts the working tree.
set -eu
cd "$(dirname "$0")/.."
commit=${1:-}
files() { # Lists the files in these directories.
    if [ -n "$commit" ]; then git ls-tree -r --name-only "$commit" -- "$@"; else git ls-files -- "$@"; fi
}
text() { # Prints a file.
    if [ -n "$commit" ]; then git show "$commit:$1"; else cat -- "$1"; fi
}

# Reads paths of Rust files and prints their numbers of code, test and comment lines. Files in a `tests` directory, `tests.rs`, and
# items with `#[cfg(test)]` count as tests.
count() {
    while read -r file; do
        case $file in */tests/* | */tests.rs | tests/*) always=1 ;; *) always=0 ;; esac
        text "$file" | awk -v always="$always" '
            /^[[:space:]]*$/ { next }
            /^[[:space:]]*\/\// { comments++; next }
            /^#\[cfg\(test\)\]/ { waits = 1; next }
            waits && /^(pub(\([a-z]+\))? )?(mod|fn|impl|struct|enum|const|static|use|trait)/ { waits = 0; inside = !/[;}]$/; tests++; next }
            always || inside { tests++; if (/^[})]/) inside = 0; next }
            { code++ }
            END { print code + 0, tests + 0, comments + 0 }'
    done | awk '{ code += $1; tests += $2; comments += $3 } END { print code + 0, tests + 0, comments + 0 }'
}
plain() { # Counts the lines of other files.
    while read -r file; do text "$file"; done | grep -c '[^[:space:]]' || true
}
row() { printf '%-44s %8s\n' "$1" "$2"; }

production=$(files src build.rs | grep '\.rs$' | count)
integration=$(files tests | grep '\.rs$' | grep -v '^tests/vm/runner/' | count)
runner=$(files tests/vm/runner | grep '\.rs$' | sed 's,^,./,' | count)
first() { echo "${1%% *}"; }
second() { rest=${1#* }; echo "${rest%% *}"; }
third() { echo "${1##* }"; }

row "production, Rust" "$(first "$production")"
row "production, comments" "$(third "$production")"
row "unit tests, Rust" "$(second "$production")"
row "integration tests, Rust" "$(second "$integration")"
row "machine test runner and its tests, Rust" "$(($(first "$runner") + $(second "$runner")))"
row "machine test cases, TOML" "$(files tests/vm/cases | plain)"
row "scenarios and test hosts, TOML" "$(files tests/scenarios tests/hosts | grep '\.toml$' | plain)"
row "profiles and matrix, TOML" "$(files profiles compat | grep '\.toml$' | plain)"
row "documented settings" "$(text docs/configuration.md | grep -cE '^\| `(profile|gpu|hold|hold-extra|[a-z-]+\.[A-Za-z.-]+)` \|')"
row "documentation, Markdown" "$(files README.md ARCHITECTURE.md CONTRIBUTING.md SECURITY.md docs | grep '\.md$' | plain)"
