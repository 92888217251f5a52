// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The limits on locked memory below which connections fail, and below which
// only small programs work.
const (
	leastLocked  = 1 << 20
	enoughLocked = 64 << 20
)

const (
	capNetAdmin = 12 // CAP_NET_ADMIN, which lifts the limit on sockets' buffers
	capIPCLock  = 14 // CAP_IPC_LOCK, which lifts the limit on locked memory
	allUsers    = "0          0 4294967295"
)

func lockedMemory(_ context.Context, m *machine) Finding {
	soft, hard, ok := m.limit("Max locked memory")
	if !ok {
		return Finding{Status: Skipped, Found: "not checked: the limit cannot be read"}
	}
	switch {
	case soft == math.MaxUint64:
		return Finding{Status: OK, Found: "no limit"}
	case m.capable(capIPCLock):
		return Finding{Status: OK, Found: fmt.Sprintf("the limit of %s does not apply to this user", size(soft))}
	case soft >= enoughLocked:
		return Finding{Status: OK, Found: "up to " + size(soft)}
	}
	f := Finding{Status: Warn, Found: fmt.Sprintf("only %s may be locked: large buffers cannot be registered", size(soft))}
	if soft < leastLocked {
		f = Finding{Status: Fail, Found: fmt.Sprintf("only %s may be locked: buffers and queues do not fit", size(soft))}
	}
	switch {
	case m.inContainer():
		f.Remedy = m.where("", "start the container without the limit: docker run --ulimit memlock=-1",
			"give the container IPC_LOCK, under securityContext, capabilities, add, or the node's container runtime LimitMEMLOCK=infinity")
	case hard > soft && (hard >= leastLocked || soft >= leastLocked):
		f.Remedy = "raise the limit in the shell that starts the program; for a service: LimitMEMLOCK=infinity"
		f.Commands = []string{"ulimit -l $(ulimit -H -l)"}
	default:
		f.Remedy = `put "* - memlock unlimited" into /etc/security/limits.d/rdma.conf and log in again; for a service: LimitMEMLOCK=infinity`
	}
	return f
}

// limit returns one of the process's resource limits.
func (m *machine) limit(name string) (soft, hard uint64, ok bool) {
	for line := range strings.Lines(m.read("proc/self/limits")) {
		values, found := strings.CutPrefix(line, name)
		if words := strings.Fields(values); found && len(words) >= 2 {
			soft, softErr := number(words[0])
			hard, hardErr := number(words[1])
			return soft, hard, softErr == nil && hardErr == nil
		}
	}
	return 0, 0, false
}

func number(text string) (uint64, error) {
	if text == "unlimited" {
		return math.MaxUint64, nil
	}
	return strconv.ParseUint(text, 10, 64)
}

// capable reports whether this process has a capability in the first user
// namespace, where it lifts limits.
func (m *machine) capable(capability int) bool {
	for line := range strings.Lines(m.read("proc/self/status")) {
		if value, found := strings.CutPrefix(line, "CapEff:"); found {
			caps, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			return err == nil && caps&(1<<capability) != 0 && m.read("proc/self/uid_map") == allUsers
		}
	}
	return false
}

func size(bytes uint64) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%d KiB", bytes>>10)
	}
	return fmt.Sprintf("%d MiB", bytes>>20)
}
