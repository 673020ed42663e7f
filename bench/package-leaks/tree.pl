# HTML::TreeBuilder: without weak references, as before 5.00 (`strong`), a tree has cycles of parent and child.
use strict;
use warnings;
use HTML::TreeBuilder 5;
use Time::HiRes qw(time usleep);

my ($seconds, $how) = @ARGV;
HTML::Element->Use_Weak_Refs($how eq 'weak');
my (%answers, $number);

sub handle {
    my $rows = "<p class=x>row $_[0]<a href='/u'>link</a></p>" x 20;
    my $tree = HTML::TreeBuilder->new_from_content("<html><body>$rows</body></html>");
    return scalar $tree->look_down(_tag => 'a');
}

$number = 0;
my $end = time + $seconds;
while (time < $end) {
    my $found = handle($number);
    $answers{$number % 2000} = "k" x 500 . $number;
    usleep(4000) if ++$number % 2 == 0;
}
