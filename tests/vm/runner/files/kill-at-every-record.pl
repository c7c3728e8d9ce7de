#!/usr/bin/perl
# Runs a command of the product repeatedly and kills it with SIGKILL right after a journal record, each time after
# another one, until a run exits with the status of `--until STATUS`, by default 0, or with one of several, as in
# `--until 6,8`. A record is identified by its kind and its change. If a later run writes the same record again, it is not killed there, so each run gets at least one
# record further. The kernel notifies the killer of each journal write (inotify). Killer and run share one CPU, on which
# the killer has the higher priority, so the run cannot write its next record unnoticed. If it still does, more than one
# missed record in ten is an error. `--check PROGRAM` runs a program after each kill, which must succeed.
use strict;
use warnings;
use POSIX qw(SA_NOCLDSTOP SIGCHLD WNOHANG);
require "/usr/lib/testbed/journal.pl";

Journal::pin_to_cpu(@ARGV);
my %option = (until => 0);
while ($ARGV[0] =~ /^--(until|check)\z/) {
    shift;
    $option{$1} = shift;
}

# More kills, more tries for one record, or more seconds for one run mean that it hangs.
my ($most, $tries, $seconds) = (250, 3, 300);
my $log = "/root/killed.log";

my (%kills, %tried);

sub short { my ($name) = @_; return length $name > 100 ? substr($name, 0, 100) . "..." : $name }

# The exit of the child interrupts the wait, SIGSTOP does not.
POSIX::sigaction(SIGCHLD, POSIX::SigAction->new(sub { }, POSIX::SigSet->new, SA_NOCLDSTOP))
    or die "sigaction: $!";
# If this script fails, no stopped process may keep dpkg's locks.
my $pid;
END { local $?; kill(KILL => $pid) if $pid }

# Records of earlier runs do not count.
Journal::fresh();
my $before = Journal::names();
my $count = 0;
RUN: while (1) {
    die "no run finished after $count kills\n" if $count >= $most;
    $pid = fork() // die "fork: $!";
    if ($pid == 0) {
        open(STDOUT, ">>", $log) and open(STDERR, ">&", \*STDOUT) or die "$log: $!";
        exec("chrt", "--other", "0", @ARGV) or die "chrt: $!";
    }
    my $end = time + $seconds;
    while (1) {
        my $stopped = Journal::written();
        if ($stopped) {
            kill(STOP => $pid);
            Journal::drain();
        }
        my @fresh = Journal::fresh();
        my $last = $fresh[-1];
        if (defined $last && !$kills{$last} && ($tried{$last}++ < $tries)) {
            kill(KILL => $pid);
            waitpid($pid, 0);
            undef $pid;
            # Include records that it wrote before the signal arrived.
            my @more = Journal::fresh();
            $last = $more[-1] if @more;
            $kills{$last}++;
            $count++;
            printf "kill %3d after %s\n", $count, short($last);
            die "$option{check} failed\n" if $option{check} && system($option{check}) != 0;
            next RUN;
        }
        if (waitpid($pid, WNOHANG) == $pid) {
            undef $pid;
            my $status = $? >> 8;
            if ($? & 255 || !grep { $_ == $status } split /,/, $option{until}) {
                system("tail", "-n", "40", $log);
                die "an uninterrupted run exited with status $status\n";
            }
            last RUN;
        }
        if (time > $end) {
            system("tail", "-n", "40", $log);
            die "a run took more than $seconds s\n";
        }
        kill(CONT => $pid) if $stopped;
    }
}
my @names = Journal::names();
my %written = map { $_ => 1 } @names[$before .. $#names];
my @missed = grep { !$kills{$_} } sort keys %written;
my %kinds;
$kinds{(split / /, $_)[0]}++ for keys %kills;
printf "killed %d times, after %d of %d different records: %s\n", $count, scalar keys %kills,
    scalar keys %written, join(", ", map { "$kinds{$_} $_" } sort keys %kinds);
die "no run was killed\n" if $count == 0;
print map { "missed: " . short($_) . "\n" } @missed;
die "too many records were missed\n" if 10 * @missed > keys %written;
