"""One x86_64 machine on Unicorn: RAM, page tables, vCPUs, tasks, host calls."""
