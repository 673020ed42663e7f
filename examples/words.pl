#!/usr/bin/perl
# Counts words, keeps an index and rewrites lines: the program in the flame graph of docs/formats.md.
use strict;
use warnings;

my ( %words, @index );
for my $n ( 1 .. 60_000 ) {
    my $line = join ' ', map { 'w' . ( $n * $_ % 9973 ) } 1 .. 12;
    $words{$_}++ for split / /, $line;
    push @index, [ $n, length $line, uc $line ] if $n % 3 == 0;
    ( my $copy = $line ) =~ s/w(\d+)/<$1>/g;
}
my @top = ( sort { $words{$b} <=> $words{$a} || $a cmp $b } keys %words )[ 0 .. 9 ];
print scalar(@index), " lines kept, most frequent: @top\n";
