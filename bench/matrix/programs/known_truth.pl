# Two churn sites, a bounded cache and a leak, whose bytes are known. The protocol is in bench/matrix/version.py.
#
# A string that is put together takes one block, whose size perl knows (LEN). Heads and bodies of scalars come from arenas, which
# are filled before the sites run.
use strict;
use warnings;
use B ();
use POSIX ();
use Time::HiRes qw(sleep);

use constant { ROUNDS => 100_000, CACHED => 2_000 };

my %text = map { $_->[0] => "x" x $_->[1] } ["churn_small", 799], ["churn_large", 4999], ["fill_cache", 899], ["leak_session", 999];
my %line;
$| = 1;

sub churn_small {
    BEGIN { $line{churn_small} = __LINE__ + 1 }
    my $string = $text{churn_small} . "a";
    return \$string;
}

sub churn_large {
    BEGIN { $line{churn_large} = __LINE__ + 1 }
    my $string = $text{churn_large} . "b";
    return \$string;
}

sub fill_cache {
    BEGIN { $line{fill_cache} = __LINE__ + 1 }
    my $string = $text{fill_cache} . "c";
    return \$string;
}

sub leak_session {
    BEGIN { $line{leak_session} = __LINE__ + 1 }
    my $string = $text{leak_session} . "d";
    return \$string;
}

sub fill_arenas {
    my ($count) = @_;
    my @all = map { my $string = "e$_"; \$string } 1 .. $count;
    return scalar @all;
}

my (@cache, @leaked);

sub work {
    $#cache = CACHED - 1;
    $#leaked = ROUNDS - 1;
    for my $i (0 .. ROUNDS - 1) {
        churn_small();
        churn_large() if $i % 20 == 0;
        $cache[$i % CACHED] = fill_cache();
        $leaked[$i] = leak_session();
        # It takes some seconds to tell a leak from a cache that fills.
        sleep 0.003 if $i % 100 == 0;
    }
}

sub site {
    my ($name, $made, $count, $live) = @_;
    my $bytes = B::svref_2object($made)->LEN;
    # The string that was made to look at is one more.
    my $total = $bytes * ($count + 1);
    return qq("$name": {"bytes": $total, "live_bytes": @{[ $bytes * $live ]}, "line": $line{$name}});
}

fill_arenas(250_000);
if (grep { $_ eq "wait" } @ARGV) {
    print "ready\n";
    my $answer = <STDIN>;
}
work();
my @sites = (
    site("churn_small", churn_small(), ROUNDS, 0),
    site("churn_large", churn_large(), ROUNDS / 20, 0),
    site("fill_cache", fill_cache(), ROUNDS, CACHED),
    site("leak_session", leak_session(), ROUNDS, ROUNDS),
);
print '{"sites": {', join(", ", @sites), qq(}, "leak": "leak_session", "cache": "fill_cache"}\n);
# What is kept is alive at the end.
POSIX::_exit(7);
