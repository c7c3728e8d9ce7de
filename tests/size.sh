#!/bin/sh
# Prints how large the project is, in lines without blanks and comments: `make size`. An argument is a commit to look at
# in place of the working tree.
set -eu
cd "$(dirname "$0")/.."
commit=${1:-}
files() { # prints the names of the files below these paths
    if [ -n "$commit" ]; then git ls-tree -r --name-only "$commit" -- "$@"; else git ls-files -- "$@"; fi
}
text() { # prints a file
    if [ -n "$commit" ]; then git show "$commit:$1"; else cat -- "$1"; fi
}

# Prints the lines of code, of tests and of comments of Rust files, whose names it reads. A test is what lies below a folder
# or in a file `tests`, and what stands behind `#[cfg(test)]` before an item with braces.
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
plain() { # the lines of other files
    while read -r file; do text "$file"; done | grep -c '[^[:space:]]' || true
}
row() { printf '%-44s %8s\n' "$1" "$2"; }

production=$(files src build.rs | grep '\.rs$' | count)
apart=$(files tests | grep '\.rs$' | grep -v '^tests/vm/runner/' | count)
runner=$(files tests/vm/runner | grep '\.rs$' | sed 's,^,./,' | count)
first() { echo "${1%% *}"; }
second() { rest=${1#* }; echo "${rest%% *}"; }
third() { echo "${1##* }"; }

row "production, Rust" "$(first "$production")"
row "comments in it" "$(third "$production")"
row "tests beside the code, Rust" "$(second "$production")"
row "tests apart, Rust" "$(second "$apart")"
row "runner of test machines, with its tests" "$(($(first "$runner") + $(second "$runner")))"
row "cases of test machines, TOML" "$(files tests/vm/cases | plain)"
row "scenarios and hosts, TOML" "$(files tests/scenarios tests/hosts | grep '\.toml$' | plain)"
row "profiles and matrix, TOML" "$(files profiles compat | grep '\.toml$' | plain)"
row "settings" "$(text docs/configuration.md | grep -cE '^\| `(profile|gpu|hold|hold-extra|[a-z-]+\.[A-Za-z.-]+)` \|')"
row "documents, Markdown" "$(files README.md ARCHITECTURE.md CONTRIBUTING.md SECURITY.md docs | grep '\.md$' | plain)"
