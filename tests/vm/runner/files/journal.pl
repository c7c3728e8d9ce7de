# Part of the test harness: reads the records of the product's journal, and notifies about each write to it. Used by
# programs that kill a run or cut its power at a record. A record is identified by its kind and its change.
use strict;
use warnings;
use POSIX ();

package Journal;

my ($parent, $directory) = ("/var/lib", "/var/lib/gpu-bootstrap");
my $journal = "$directory/journal.jsonl";
# System call numbers of x86-64, and their flags: inotify_init1(2), asm/unistd_64.h.
die "the system call numbers are for x86-64\n" if (POSIX::uname())[4] ne "x86_64";
my ($inotify_init1, $inotify_add_watch) = (294, 254);
my ($nonblock, $cloexec) = (0x800, 0x80000);
my ($modify, $moved_to, $create) = (0x2, 0x80, 0x100);

my ($offset, @names) = (0);

# Pins this program and its children to the current CPU, where it has the higher priority, so that it notices each write
# before the next one. Concurrent cases may share a CPU, but need not.
sub pin_to_cpu {
    my @arguments = @_;
    return if $ENV{TESTBED_PINNED};
    $ENV{TESTBED_PINNED} = 1;
    open(my $stat, "<", "/proc/self/stat") or die "/proc/self/stat: $!";
    my $cpu = (split / /, (<$stat> =~ s/.*\) //sr))[36];
    exec("taskset", "--cpu-list", $cpu, "chrt", "--fifo", "10", $0, @arguments) or die "taskset: $!";
}

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
        my ($kind) = $line =~ /"record":\{"kind":"([a-z-]+)"/ or die "not a record: $line";
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

# All names so far.
sub names { return @names }

my $writes = syscall($inotify_init1, $nonblock | $cloexec);
die "inotify: $!" if $writes < 0;
open(my $events, "<&=", $writes) or die "inotify: $!";

sub add {
    my ($path) = @_;
    return syscall($inotify_add_watch, $writes, $path, $modify | $moved_to | $create) >= 0;
}

# Called repeatedly: the directory may be removed and created again.
sub watch { add($directory) }

# Waits a moment for a write or for a signal; returns whether there was a write.
sub written {
    my $ready = "";
    vec($ready, $writes, 1) = 1;
    return select($ready, undef, undef, 0.1) > 0;
}

# The events only report a write; `fresh` reads the journal.
sub drain {
    sysread($events, my $buffer, 65536);
    watch();
}

add($parent) or die "cannot watch $parent: $!";
watch();
1;
