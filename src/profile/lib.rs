//! A profile as data: read, recovered, symbolised.
