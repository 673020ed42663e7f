# Allocates known numbers of bytes in subs of known names, and prints the truth as JSON.
#
# A string that is put together takes one block, whose size perl knows (LEN). Heads and bodies of scalars come from arenas, which
# are filled before the sites run.
use warnings;
use B ();
use POSIX ();

my (%truth, @kept);

sub text { return "x" x $_[0] }

sub small_and_freed {
    my ($text) = @_;
    my $string = $text . "a";
    return \$string;
}

sub small_and_kept {
    my ($text) = @_;
    my $string = $text . "b";
    return \$string;
}

sub large_and_freed {
    my ($text) = @_;
    my $string = $text . "c";
    return \$string;
}

package Some::Package;

sub large_and_kept {
    my ($text) = @_;
    my $string = $text . "d";
    return \$string;
}

package main;

sub fill_arenas {
    my ($count) = @_;
    my @all = map { my $string = "e$_"; \$string } 1 .. $count;
    return scalar @all;
}

sub site {
    my ($name, $count, $size, $is_kept) = @_;
    my $sub = \&$name;
    my $text = text($size);
    my @these;
    $#these = $count;
    for my $at (0 .. $count - 1) {
        my $string = $sub->($text);
        $these[$at] = $string if $is_kept;
    }
    my $bytes = B::svref_2object($sub->($text))->LEN;
    push @kept, \@these;
    $truth{$name} = [($count + 1) * $bytes, $count + 1, $is_kept ? $count * $bytes : 0, $is_kept ? $count : 0];
}

sub run {
    my ($times) = @_;
    site("main::small_and_freed", 50_000 * $times, 150, 0);
    site("main::small_and_kept", 20_000 * $times, 60, 1);
    site("main::large_and_freed", 4_000 * $times, 5000, 0);
    site("Some::Package::large_and_kept", 1_000 * $times, 3000, 1);
}

my $times = $ARGV[0];
fill_arenas(60_000 * $times);
run($times);
my @sites;
for my $name (sort keys %truth) {
    my ($bytes, $allocations, $live_bytes, $live_blocks) = @{ $truth{$name} };
    push @sites, qq("$name": {"bytes": $bytes, "allocations": $allocations, "live_bytes": $live_bytes, "live_blocks": $live_blocks});
}
$| = 1;
print "{", join(", ", @sites), "}\n";
# What is kept is alive at the end.
POSIX::_exit(0);
