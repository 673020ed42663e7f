package Required;
our $at_load = $main::text . "required";
sub of_a_file { my $string = $main::text . "file"; return \$string }
1;
