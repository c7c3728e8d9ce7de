# What a person types. Each target installs or builds what it needs.

include tests/vm/vm.mk
