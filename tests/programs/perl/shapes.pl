# Every kind of code that Perl runs allocates a large string, of which the test knows the sub, the line and the callers.
use strict;
use warnings;
use FindBin ();

our $text;
BEGIN { $text = join '', map { "x" x 1000 } 1 .. 300 }

# Keeps what it is given until the program ends.
our @kept;
sub keep { push @kept, $_[0]; return 1 }

my $anonymous = sub { my $string = $text . "anonymous"; keep(\$string) };
my $other = sub { my $string = $text . "other"; keep(\$string) };
sub calls { $_[0]->() }
calls($anonymous);
calls($other);

my sub lexical { my $string = $text . "lexical"; keep(\$string) }
lexical();

sub by_text { my $string = $text . $a; keep(\$string); $a <=> $b }
sub sorts { my @sorted = sort by_text 2, 1; return @sorted }
sorts();

package Destroyed { sub new { bless [], shift } sub DESTROY { my $string = $main::text . "destroyed"; main::keep(\$string) } }
sub drops { my $object = Destroyed->new; undef $object }
drops();

package Tied { sub TIESCALAR { bless [], shift } sub FETCH { my $string = $main::text . "tied"; main::keep(\$string); 1 } }
sub reads_tied { tie my $scalar, 'Tied'; return "$scalar" }
reads_tied();

package Overloaded { use overload '+' => sub { plus(@_) }; sub plus { my $string = $main::text . "plus"; main::keep(\$string) } }
sub adds { my $object = bless [], 'Overloaded'; return $object + 1 }
adds();

sub AUTOLOAD { my $string = $text . "autoload"; keep(\$string) }
unknown_sub();

sub on_signal { my $string = $text . "signal"; keep(\$string) }
sub is_interrupted { local $SIG{USR1} = \&on_signal; kill USR1 => $$; my $count = 0; $count++ for 1 .. 1000 }
is_interrupted();

sub went_to { my $string = $text . "goto"; keep(\$string) }
sub goes { goto &went_to }
sub calls_goer { goes(); 1 }
calls_goer();

sub dies_below { my ($depth) = @_; die "deep\n" if $depth == 0; dies_below($depth - 1) }
sub on_death { my $string = $text . "death"; keep(\$string) }
sub catches { local $SIG{__DIE__} = \&on_death; eval { dies_below(50) }; my $string = $text . "caught"; keep(\$string) }
catches();

sub evaluates { eval 'sub made { my $string = $text . "made"; keep(\$string) } my $string = $text . "evaluated"; keep(\$string); made()' or die }
evaluates();

sub requires { require "$FindBin::Bin/Required.pm"; Required::of_a_file() }
requires();

format STDERR =
@<<
of_format()
.
sub of_format { my $string = $text . "format"; keep(\$string); "f" }
sub writes { open my $null, '>', '/dev/null' or die; my $before = select $null; $~ = 'STDERR'; write; select $before }
writes();

sub recurses { no warnings "recursion"; my ($depth) = @_; return recurses($depth - 1) if $depth > 0; my $string = $text . "deep"; keep(\$string) }
recurses(5000);

sub renamed {
# line 4711 "elsewhere.pl"
    my $string = $text . "elsewhere"; keep(\$string);
}
renamed();
print scalar(@kept), "\n";
exit 3;
