// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"os"
	"slices"
	"strings"
)

// firstPIDs names the kernel's first PID namespace, which has the same number
// on every machine.
const firstPIDs = "pid:[4026531836]"

// inContainer reports whether this process runs in a container: it has its own
// PID namespace, or Kubernetes has started it. Files that container programs
// leave behind are less reliable, because they may have been copied with a file
// system.
func (m *machine) inContainer() bool {
	target, err := os.Readlink(m.path("proc/self/ns/pid"))
	return m.inPod() || err == nil && target != firstPIDs
}

// inPod reports whether Kubernetes has started this container. Kubernetes sets
// the address of its API in each container's environment.
func (m *machine) inPod() bool {
	return slices.ContainsFunc(strings.Split(m.read("proc/self/environ"), "\x00"), func(variable string) bool {
		return strings.HasPrefix(variable, "KUBERNETES_SERVICE_HOST=")
	})
}

// inOtherNetwork reports whether the network namespace differs from that of the
// machine's first process. Only root can find that out.
func (m *machine) inOtherNetwork() bool {
	own, err := os.Readlink(m.path("proc/self/ns/net"))
	first, firstErr := os.Readlink(m.path("proc/1/ns/net"))
	return err == nil && firstErr == nil && own != first
}

// where returns the text that applies to where this program runs: on a host, in
// a container or in a pod.
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
