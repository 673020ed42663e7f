# A server in miniature: a table from the start, requests whose data is dropped, and a session that is kept for each.
use strict;
use warnings;

my @sessions;

sub build_table {
    return [ map { "t$_" x 250 } 1 .. 4_000 ];
}

sub open_session {
    my ($text) = @_;
    push @sessions, $text . "s";
}

sub serve_request {
    my ($text) = @_;
    my $answer = $text . "r";
    return \$answer;
}

my $table = build_table();
my $text = "x" x 799;
for (1 .. $ARGV[0]) {
    serve_request($text);
    open_session($text);
}
print @$table + @sessions, "\n";
