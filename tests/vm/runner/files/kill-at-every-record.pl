#!/usr/bin/perl
# Starts a command of the product again and again, and kills it with SIGKILL right after each record
# of its journal that no kill has come after yet, until a run ends by itself with status 0. A record
# is known by its kind and the change that it is about: where a later run writes the same one again,
# it goes on past it, so that each run gets at least one record further. The kernel tells of each write
# (inotify), and both are on one processor, on which who looks on goes first: the run does not get to its
# next record unseen. Should it all the same: more than one record in ten is an error.
use strict;
use warnings;
use POSIX qw(SA_NOCLDSTOP SIGCHLD WNOHANG);

# On the processor where this happens to be: cases at once need not share one, and may.
if (!$ENV{LOOKS_ON}) {
    $ENV{LOOKS_ON} = 1;
    open(my $stat, "<", "/proc/self/stat") or die "/proc/self/stat: $!";
    my $processor = (split / /, (<$stat> =~ s/.*\) //sr))[36];
    exec("taskset", "--cpu-list", $processor, "chrt", "--fifo", "10", $0, @ARGV) or die "taskset: $!";
}

my ($parent, $folder) = ("/var/lib", "/var/lib/gpu-bootstrap");
my $journal = "$folder/journal.jsonl";
# System calls of x86-64, and their flags: inotify_init1(2), asm/unistd_64.h.
die "the numbers of system calls are x86-64's\n" if (POSIX::uname())[4] ne "x86_64";
my ($inotify_init1, $inotify_add_watch) = (294, 254);
my ($nonblock, $cloexec) = (0x800, 0x80000);
my ($modify, $moved_to, $create) = (0x2, 0x80, 0x100);
# More kills than that, tries for one record, or seconds for one run mean that something hangs.
my ($most, $tries, $seconds) = (250, 3, 300);
my $said = "/root/killed.log";

my ($offset, @names, %kills, %tried);
$offset = 0;

# The names of the records since the last look.
sub fresh {
    open(my $file, "<", $journal) or return ();
    # A torn last line was cut off.
    $offset = 0, @names = () if -s $file < $offset;
    seek($file, $offset, 0);
    my @fresh;
    while (my $line = <$file>) {
        last if $line !~ /\n\z/;
        $offset += length $line;
        my ($kind) = $line =~ /"record":\{"kind":"([a-z-]+)"/ or die "no record: $line";
        my $about = "";
        if ($kind eq "intent") {
            ($about) = $line =~ /"change":(.*?),"undo":\{/ or die "no change: $line";
        } elsif ($line =~ /"record":\{"kind":"[a-z-]+","intent":(\d+)/) {
            ($about) = $names[$1] =~ /^intent (.*)/s;
        }
        push @names, "$kind $about";
        push @fresh, $names[-1];
    }
    return @fresh;
}

my $writes = syscall($inotify_init1, $nonblock | $cloexec);
die "inotify: $!" if $writes < 0;
open(my $told, "<&=", $writes) or die "inotify: $!";

# Again and again: a folder may go away and come back.
sub watch {
    my ($path) = @_;
    return syscall($inotify_add_watch, $writes, $path, $modify | $moved_to | $create) >= 0;
}

# Waits until something is written or the run ends, but not for long; whether something is written.
sub written {
    my $ready = "";
    vec($ready, $writes, 1) = 1;
    return select($ready, undef, undef, 0.1) > 0;
}

sub short { my ($name) = @_; return length $name > 100 ? substr($name, 0, 100) . "..." : $name }

watch($parent) or die "cannot watch $parent: $!";
watch($folder);
# An end interrupts the waiting, a stop does not.
POSIX::sigaction(SIGCHLD, POSIX::SigAction->new(sub { }, POSIX::SigSet->new, SA_NOCLDSTOP))
    or die "sigaction: $!";
# Whatever goes wrong here, nobody is left standing with dpkg's locks.
my $pid;
END { local $?; kill(KILL => $pid) if $pid }

# Records of before are nothing to kill after.
fresh();
my $before = @names;
my $count = 0;
RUN: while (1) {
    die "killed $count times, and no run ends\n" if $count >= $most;
    $pid = fork() // die "fork: $!";
    if ($pid == 0) {
        open(STDOUT, ">>", $said) and open(STDERR, ">&", \*STDOUT) or die "$said: $!";
        exec("chrt", "--other", "0", @ARGV) or die "chrt: $!";
    }
    my $end = time + $seconds;
    while (1) {
        my $stopped = written();
        if ($stopped) {
            kill(STOP => $pid);
            # What was written is in the journal.
            sysread($told, my $events, 65536);
            watch($folder);
        }
        my @fresh = fresh();
        my $last = $fresh[-1];
        if (defined $last && !$kills{$last} && ($tried{$last}++ < $tries)) {
            kill(KILL => $pid);
            waitpid($pid, 0);
            undef $pid;
            # What it wrote before the signal came counts.
            my @more = fresh();
            $last = $more[-1] if @more;
            $kills{$last}++;
            $count++;
            printf "kill %3d after %s\n", $count, short($last);
            next RUN;
        }
        if (waitpid($pid, WNOHANG) == $pid) {
            undef $pid;
            my $status = $? >> 8;
            if ($? != 0) {
                system("tail", "-n", "40", $said);
                die "a run that was not killed ended with status $status\n";
            }
            last RUN;
        }
        if (time > $end) {
            system("tail", "-n", "40", $said);
            die "a run took more than $seconds s\n";
        }
        kill(CONT => $pid) if $stopped;
    }
}
my %written = map { $_ => 1 } @names[$before .. $#names];
my @missed = grep { !$kills{$_} } sort keys %written;
my %kinds;
$kinds{(split / /, $_)[0]}++ for keys %kills;
printf "killed %d times, after %d of %d different records: %s\n", $count, scalar keys %kills,
    scalar keys %written, join(", ", map { "$kinds{$_} $_" } sort keys %kinds);
die "no record was killed after\n" if $count == 0;
print map { "not caught: " . short($_) . "\n" } @missed;
die "too many were not caught\n" if 10 * @missed > keys %written;
