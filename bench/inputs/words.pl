# Text and collections in Perl: words counted, sorted, joined and split. No random, no clock.
use strict;
use warnings;

my ($rounds) = @ARGV;
my (%counts, $total);

sub make_words {
    my ($turn) = @_;
    return map { "word" . ($_ * 7919 + $turn) % 1009 } 0 .. 3999;
}

sub pair {
    my ($key, $value) = @_;
    return { key => $key, value => $value, text => "$key$value" x 12 };
}

sub round {
    my ($turn) = @_;
    my @words = make_words($turn);
    $counts{$_}++ for @words;
    my @pairs = map { pair($words[$_], $words[ 300 + $_ ]) } 0 .. 299;
    my %unique = map { $_ => 1 } @words;
    my @sorted = sort keys %unique;
    $total += length $_->{text} for @pairs;
    my @parts = split /1/, join " ", @words;
    $total += @sorted + @parts;
}

round($_) for 0 .. $rounds - 1;
print scalar(keys %counts), " $total\n";
