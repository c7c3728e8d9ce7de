#!/usr/bin/perl
# Part of the test harness: holds a lock like dpkg and apt, until it is killed.
use strict;
use warnings;
use Fcntl;

my ($path) = @ARGV or die "hold-lock PATH\n";
open(my $file, ">>", $path) or die "$path: $!\n";
my $lock = pack("s s x![q] q q i x![q]", F_WRLCK, 0, 0, 0, 0);
fcntl($file, F_SETLK, $lock) or die "$path is locked: $!\n";
$| = 1;
print "$path is held\n";
# Longer than any case.
sleep 3600;
