#!/usr/bin/perl
# Counts words, keeps an index and rewrites lines: the program in the flame graph of docs/formats.md.
use strict;
use warnings;

my ( %words, @index );

sub make_line {
    my ($n) = @_;
    return join ' ', map { 'w' . ( $n * $_ % 9973 ) } 1 .. 12;
}

sub count_words {
    my ($line) = @_;
    $words{$_}++ for split / /, $line;
}

sub keep_in_index {
    my ( $n, $line ) = @_;
    push @index, [ $n, length $line, uc $line ];
}

sub mark_words {
    my ($line) = @_;
    $line =~ s/w(\d+)/<$1>/g;
    return $line;
}

sub most_frequent {
    return ( sort { $words{$b} <=> $words{$a} || $a cmp $b } keys %words )[ 0 .. 9 ];
}

for my $n ( 1 .. 60_000 ) {
    my $line = make_line($n);
    count_words($line);
    keep_in_index( $n, $line ) if $n % 3 == 0;
    mark_words($line);
}
my @top = most_frequent();
print scalar(@index), " lines kept, most frequent: @top\n";
