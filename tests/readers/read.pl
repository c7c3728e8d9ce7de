# Parses standard input with TAP::Parser and prints JSON: a list of tests, each with the YAML block that follows it.
use strict;
use warnings;
use JSON::PP;
use TAP::Parser;

binmode STDIN, ':encoding(UTF-8)';
my $text   = do { local $/; <STDIN> };
my $parser = TAP::Parser->new( { tap => $text } );
my @tests;
while ( my $result = $parser->next ) {
    if ( $result->is_test ) {
        push @tests,
          {
            ok          => $result->is_actual_ok ? JSON::PP::true : JSON::PP::false,
            skip        => $result->has_skip ? JSON::PP::true : JSON::PP::false,
            description => $result->description,
          };
    }
    elsif ( $result->is_yaml ) {
        $tests[-1]{yaml} = $result->data;
    }
    elsif ( $result->is_unknown ) {
        die 'invalid TAP: ' . $result->as_string . "\n";
    }
}
die join( "\n", $parser->parse_errors ) . "\n" if $parser->parse_errors;
print JSON::PP->new->utf8->encode( \@tests );
