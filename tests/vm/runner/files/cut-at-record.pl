#!/usr/bin/perl
# cut-at-record PASS DELAY COMMAND...: runs a command of the product, skips PASS new journal records, and shuts down the
# filesystem of `/` DELAY milliseconds after the next one, so that no later write reaches the disk. A record is new if
# it was neither in the journal nor on standard input (a power loss may have removed it). Then it prints the name of the
# record and exits with 42, and the harness cuts the power. If the command exits first, the exit code is 0 for success
# and another one otherwise. It first waits for a resumed run.
use strict;
use warnings;
use POSIX qw(SA_NOCLDSTOP SIGCHLD WNOHANG);
require "/usr/lib/testbed/journal.pl";

my ($pass, $delay, @command) = @ARGV;
Journal::pin_to_cpu(@ARGV);

# EXT4_IOC_SHUTDOWN, `_IOR('X', 125, __u32)`, with EXT4_GOING_FLAGS_NOLOGFLUSH: Linux, fs/ext4/ext4.h.
my ($shutdown, $no_log_flush) = (0x8004587d, 2);
my $cut = 42;
my $seconds = 300;
# Not on the disk that loses its power.
my $log = "/run/cut-at-record.log";
my $unit = "gpu-bootstrap-resume.service";

sub fail {
    system("tail", "-n", "60", $log);
    die @_;
}

sub cut {
    my ($name) = @_;
    select(undef, undef, undef, $delay / 1000) if $delay;
    sysopen(my $root, "/", POSIX::O_RDONLY() | 0x10000) or die "/: $!";
    ioctl($root, $shutdown, pack("L", $no_log_flush)) or die "cannot shut down /: $!";
    print "$name\n";
    exit($cut);
}

my $end = time + $seconds;
while (`systemctl show -P ActiveState $unit` =~ /^(activating|active|reloading)/) {
    fail("$unit did not finish in $seconds s\n") if time > $end;
    select(undef, undef, undef, 0.2);
}

Journal::fresh();
my %known = map { $_ => 1 } Journal::names();
while (my $line = <STDIN>) {
    chomp $line;
    $known{$line} = 1;
}
# The exit of the child interrupts the wait.
POSIX::sigaction(SIGCHLD, POSIX::SigAction->new(sub { }, POSIX::SigSet->new, SA_NOCLDSTOP))
    or die "sigaction: $!";
my $pid = fork() // die "fork: $!";
if ($pid == 0) {
    open(STDIN, "<", "/dev/null") or die "/dev/null: $!";
    open(STDOUT, ">>", $log) and open(STDERR, ">&", \*STDOUT) or die "$log: $!";
    exec("chrt", "--other", "0", @command) or die "chrt: $!";
}
while (1) {
    Journal::drain() if Journal::written();
    for my $name (Journal::fresh()) {
        next if $known{$name}++;
        cut($name) if $pass-- == 0;
    }
    if (waitpid($pid, WNOHANG) == $pid) {
        exit(0) if $? == 0;
        my $status = $?;
        fail(sprintf "an uninterrupted run exited with status %d, signal %d\n", $status >> 8, $status & 127);
    }
    fail("a run took more than $seconds s\n") if time > $end + $seconds;
}
