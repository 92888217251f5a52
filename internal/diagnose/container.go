package diagnose

import (
	"context"
	"os"
)

// firstPIDs is the kernel's first namespace of process numbers, which has the
// same number on every machine.
const firstPIDs = "pid:[4026531836]"

// inContainer reports whether process numbers are this container's own.
// Files that container programs leave behind say less: they may have been
// copied with the rest of a file system.
func (m *machine) inContainer() bool {
	target, err := os.Readlink(m.path("proc/self/ns/pid"))
	return err == nil && target != firstPIDs
}

func container(_ context.Context, m *machine) Finding {
	if !m.inContainer() {
		return Finding{Status: OK, Found: "not in one"}
	}
	return Finding{Status: OK, Found: "in a container: what is missing may have to be passed to it, and modules and devices are the host's"}
}
