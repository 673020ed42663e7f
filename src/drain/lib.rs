//! The agent's own thread: empties the ring, interns stacks, writes the profile.
