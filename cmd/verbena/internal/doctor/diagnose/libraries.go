// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
)

// libraries calls a harmless function of each C library.
func libraries(_ context.Context, m *machine) Finding {
	_, verbs := libibverbs.PortStateStr(link.Active)
	_, cm := librdmacm.EventStr(librdmacm.RDMA_CM_EVENT_ESTABLISHED)
	err := cmp.Or(verbs, cm)
	library, missing := errors.AsType[*ibverbs.LibraryError](err)
	switch {
	case missing:
		return m.libraryMissing(library)
	case err != nil:
		return Finding{Status: Fail, Found: err.Error(), Remedy: "build the program for 64-bit Linux, with CGO_ENABLED=1, and link it dynamically"}
	}
	return m.versions()
}

// Libraries returns which C libraries this program uses, or why it uses none.
func Libraries() string {
	if device := os.Getenv(variable); device != "" {
		return "no C libraries: " + variable + "=" + device
	}
	return libraries(context.Background(), &machine{root: "/"}).Found
}

func (m *machine) libraryMissing(err *ibverbs.LibraryError) Finding {
	f := Finding{Status: Fail, Found: "cannot load " + err.Library + ": " + err.Reason}
	if command := m.install("libibverbs1 librdmacm1 ibverbs-providers", "libibverbs librdmacm"); command != "" {
		f.Commands = []string{command}
	} else {
		f.Remedy = "install rdma-core's libraries: libibverbs with its providers, and librdmacm"
	}
	return f
}

// install returns the command that installs packages, or "" if the system is
// not known.
func (m *machine) install(debian, fedora string) string {
	for line := range strings.Lines(m.read("etc/os-release")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if name != "ID" && name != "ID_LIKE" {
			continue
		}
		for id := range strings.FieldsSeq(strings.Trim(value, `"'`)) {
			switch id {
			case "debian", "ubuntu":
				return "apt-get install -y " + debian
			case "fedora", "rhel", "centos":
				return "dnf install -y " + fedora
			}
		}
	}
	return ""
}

// libraryFile matches the file name of a library that ends with the version of
// rdma-core.
var libraryFile = regexp.MustCompile(`^lib(?:ibverbs|rdmacm)\.so\.\d+\.\d+\.(\d+\.\d+)$`)

// versions returns the versions of the libraries among the files that the
// process has mapped.
func (m *machine) versions() Finding {
	found := map[string]string{} // versions by library
	for line := range strings.Lines(m.read("proc/self/maps")) {
		file := filepath.Base(strings.TrimSpace(line))
		if match := libraryFile.FindStringSubmatch(file); match != nil {
			library, _, _ := strings.Cut(file, ".")
			found[library] = match[1]
		}
	}
	verbs, cm := found["libibverbs"], found["librdmacm"]
	switch {
	case verbs == "" || cm == "":
		return Finding{Status: OK, Found: "libibverbs and librdmacm, whose files do not show the version"}
	case verbs != cm:
		return Finding{
			Status: Warn, Found: fmt.Sprintf("libibverbs is from rdma-core %s, librdmacm from %s", verbs, cm),
			Remedy: "install the same version of both",
		}
	}
	return Finding{Status: OK, Found: "libibverbs and librdmacm from rdma-core " + verbs}
}
