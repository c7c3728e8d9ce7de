#!/usr/bin/perl
# Runs a command of the product repeatedly and kills it with SIGKILL right after a journal record, each
# time after another one, until a run ends by itself with status 0. A record is identified by its kind
# and its change. If a later run writes the same record again, it is not killed there, so each run gets
# at least one record further. The kernel notifies the killer of each journal write (inotify). Killer
# and run share one processor, on which the killer has the higher priority, so the run cannot write its
# next record unnoticed. If it does all the same, more than one missed record in ten is an error.
use strict;
use warnings;
use POSIX qw(SA_NOCLDSTOP SIGCHLD WNOHANG);

# Both stay on the current processor. Cases that run at the same time may share one, but need not.
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
# More kills, more tries for one record, or more seconds for one run mean that something hangs.
my ($most, $tries, $seconds) = (250, 3, 300);
my $said = "/root/killed.log";

my ($offset, @names, %kills, %tried);
$offset = 0;

# The names of the records since the last call.
sub fresh {
    open(my $file, "<", $journal) or return ();
    # The product removed an incomplete last line.
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

# Called repeatedly: the directory may be removed and created again.
sub watch {
    my ($path) = @_;
    return syscall($inotify_add_watch, $writes, $path, $modify | $moved_to | $create) >= 0;
}

# Waits a moment for a write or for the end of the run; returns whether there was a write.
sub written {
    my $ready = "";
    vec($ready, $writes, 1) = 1;
    return select($ready, undef, undef, 0.1) > 0;
}

sub short { my ($name) = @_; return length $name > 100 ? substr($name, 0, 100) . "..." : $name }

watch($parent) or die "cannot watch $parent: $!";
watch($folder);
# The end of the child interrupts the wait, SIGSTOP does not.
POSIX::sigaction(SIGCHLD, POSIX::SigAction->new(sub { }, POSIX::SigSet->new, SA_NOCLDSTOP))
    or die "sigaction: $!";
# If this script fails, no stopped process may keep dpkg's locks.
my $pid;
END { local $?; kill(KILL => $pid) if $pid }

# Records of earlier runs do not count.
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
            # The events only say that there was a write; the journal is read below.
            sysread($told, my $events, 65536);
            watch($folder);
        }
        my @fresh = fresh();
        my $last = $fresh[-1];
        if (defined $last && !$kills{$last} && ($tried{$last}++ < $tries)) {
            kill(KILL => $pid);
            waitpid($pid, 0);
            undef $pid;
            # Records that it wrote before the signal arrived count, too.
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
