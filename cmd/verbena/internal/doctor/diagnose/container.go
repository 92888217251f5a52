// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"os"
	"slices"
	"strings"
)

// firstPIDs is the kernel's first namespace of process numbers, which has the
// same number on every machine.
const firstPIDs = "pid:[4026531836]"

// inContainer reports whether process numbers are this container's own, or
// Kubernetes has started it.
// Files that container programs leave behind say less: they may have been
// copied with the rest of a file system.
func (m *machine) inContainer() bool {
	target, err := os.Readlink(m.path("proc/self/ns/pid"))
	return m.inPod() || err == nil && target != firstPIDs
}

// inPod reports whether Kubernetes has started this container: it tells each
// where its API is.
func (m *machine) inPod() bool {
	return slices.ContainsFunc(strings.Split(m.read("proc/self/environ"), "\x00"), func(variable string) bool {
		return strings.HasPrefix(variable, "KUBERNETES_SERVICE_HOST=")
	})
}

// inOtherNetwork reports whether this is another network namespace than that
// of the machine's first process. Only root may know.
func (m *machine) inOtherNetwork() bool {
	own, err := os.Readlink(m.path("proc/self/ns/net"))
	first, firstErr := os.Readlink(m.path("proc/1/ns/net"))
	return err == nil && firstErr == nil && own != first
}

// where returns the one that holds where this runs.
func (m *machine) where(host, container, pod string) string {
	switch {
	case m.inPod():
		return pod
	case m.inContainer():
		return container
	}
	return host
}

func container(_ context.Context, m *machine) Finding {
	const passed = ": missing parts may have to be passed to it; modules and devices are "
	f := Finding{Status: OK, Found: m.where("not in one", "in a container"+passed+"the host's", "in a pod of Kubernetes"+passed+"the node's")}
	if !m.inContainer() && m.inOtherNetwork() {
		f.Found += ", but in a different network namespace from the machine's first process"
	}
	return f
}
