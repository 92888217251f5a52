// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// What a program with one connection needs of a control group's allowance.
const (
	leastHandles = 4
	leastObjects = 16
)

const cgroups = "sys/fs/cgroup"

// limits checks the limits on open files and on RDMA objects.
func limits(_ context.Context, m *machine) Finding {
	if f := m.openFiles(); f.Status == Fail {
		return f
	}
	return m.controlGroups()
}

// leastFiles is the number of files that a program with one connection opens.
// If a program may not open them, the libraries fail with errors that do not
// mention files.
const leastFiles = 6

func (m *machine) openFiles() Finding {
	soft, _, ok := m.limit("Max open files")
	if open := uint64(len(m.list("proc/self/fd"))); !ok || soft >= open+leastFiles {
		return Finding{Status: OK}
	}
	return Finding{
		Status: Fail, Found: fmt.Sprintf("only %d files may be open at a time", soft),
		Remedy: m.where(moreFiles, "start the container with more: docker run --ulimit nofile=65536", "raise LimitNOFILE of the node's container runtime"),
	}
}

const moreFiles = `raise the limit: put "* - nofile 65536" into /etc/security/limits.d/rdma.conf and log in again; for a service: LimitNOFILE=65536`

// controlGroups checks the limits of this process's control groups, and of the
// groups above them, on the objects of each device.
func (m *machine) controlGroups() Finding {
	group, ok := strings.CutPrefix(m.read("proc/self/cgroup"), "0::")
	if !ok {
		return Finding{Status: Skipped, Found: "not checked: the machine uses control groups version 1"}
	}
	f := Finding{Status: OK, Found: "the control groups leave room"}
	for ; group != "/" && group != "."; group = path.Dir(group) {
		file := path.Join(cgroups, group, "rdma.max")
		for line := range strings.Lines(m.read(file)) {
			device, values, _ := strings.Cut(strings.TrimSpace(line), " ")
			if !scarce(values) {
				continue
			}
			f.Status, f.Found = Fail, fmt.Sprintf("the control group %s allows %s only %s", group, device, values)
			f.Remedy = "raise the limit in the settings of the service or container"
			f.Commands = append(f.Commands, fmt.Sprintf("echo %s hca_handle=max hca_object=max >/%s", device, file))
		}
	}
	return f
}

// scarce reports whether a limit in a line such as "hca_handle=2
// hca_object=max" is too low for one connection.
func scarce(values string) bool {
	for value := range strings.FieldsSeq(values) {
		name, text, _ := strings.Cut(value, "=")
		n, err := strconv.Atoi(text)
		if err == nil && (name == "hca_handle" && n < leastHandles || name == "hca_object" && n < leastObjects) {
			return true
		}
	}
	return false
}
