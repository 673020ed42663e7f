//! liballocsample.so: joins shim, agent and drain.
