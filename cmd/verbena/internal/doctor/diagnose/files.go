// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

const deviceFolder = "/dev/infiniband"

// deviceFiles opens the device file of each device that the kernel has in this
// network namespace.
func deviceFiles(_ context.Context, m *machine) Finding {
	numbers := map[string]string{"rdma_cm": m.read("sys/class/misc/rdma_cm/dev")}
	names := []string{"rdma_cm"}
	for _, name := range m.list("sys/class/infiniband_verbs") {
		device := m.read("sys/class/infiniband_verbs/" + name + "/ibdev")
		if strings.HasPrefix(name, "uverbs") && m.exists("sys/class/infiniband/"+device) {
			names = append(names, name)
			numbers[name] = m.read("sys/class/infiniband_verbs/" + name + "/dev")
		}
	}
	var missing, refused []string
	for _, name := range names {
		err := m.open(m.path(path.Join(deviceFolder, name)))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, name)
		case errors.Is(err, fs.ErrPermission):
			refused = append(refused, name)
		}
	}
	switch {
	case len(missing) > 0:
		return m.filesMissing(missing, numbers)
	case len(refused) > 0:
		return m.filesRefused(refused)
	}
	return Finding{Status: OK, Found: fmt.Sprintf("%s in %s can be opened", strings.Join(names, ", "), deviceFolder)}
}

const (
	passFiles      = "start the container with access to them, such as: docker run --device=/dev/infiniband"
	passFilesToPod = "have the pod request the device from its device plugin, which passes them: under resources, limits, such as rdma/hca: 1"
)

func (m *machine) filesMissing(names []string, numbers map[string]string) Finding {
	f := Finding{Status: Fail, Found: "no " + strings.Join(names, ", ") + " in " + deviceFolder}
	if m.inContainer() {
		f.Remedy = m.where("", passFiles, passFilesToPod)
		return f
	}
	f.Commands = []string{"mkdir -p " + deviceFolder}
	for _, name := range names {
		f.Commands = append(f.Commands, fmt.Sprintf("mknod -m 666 %s c %s", path.Join(deviceFolder, name), strings.ReplaceAll(numbers[name], ":", " ")))
	}
	f.Remedy = "find out why udev has not created them; until then, create them by hand"
	return f
}

func (m *machine) filesRefused(names []string) Finding {
	f := Finding{Status: Fail, Found: "no permission to open " + strings.Join(names, ", ") + " in " + deviceFolder}
	if m.inContainer() {
		f.Remedy = m.where("", passFiles, passFilesToPod)
		return f
	}
	command := "chmod 666"
	for _, name := range names {
		command += " " + path.Join(deviceFolder, name)
	}
	f.Commands = []string{command}
	f.Remedy = "the udev rules of the package rdma-core do this permanently; until then, do it by hand"
	return f
}
