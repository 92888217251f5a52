// SPDX-License-Identifier: Apache-2.0

package soft

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// The names, and the number of GIDs, of the device in user space, for programs
// that read files. GUIDs and GIDs differ from process to process, so there are
// no files for them: programs ask libibverbs for those.
const (
	deviceName = "soft0"
	fileName   = "uverbs0"
	gidEntries = 256
)

// deviceFiles maps the paths of files to their texts. Programs on the device in
// user space see these files in place of the system's files about RDMA devices.
func deviceFiles() map[string]string {
	const (
		device = "sys/class/infiniband/" + deviceName
		port   = device + "/ports/1"
		verbs  = "sys/class/infiniband_verbs"
	)
	all := map[string]string{
		device + "/node_type": "1: CA\n",
		device + "/node_desc": deviceName + "\n",

		port + "/link_layer":     "Ethernet\n",
		port + "/state":          "4: ACTIVE\n",
		port + "/phys_state":     "5: LinkUp\n",
		port + "/lid":            "0x0\n",
		port + "/lid_mask_count": "0\n",
		port + "/sm_lid":         "0x0\n",
		port + "/sm_sl":          "0\n",
		port + "/pkeys/0":        "0xffff\n",

		verbs + "/abi_version":                  "6\n",
		verbs + "/" + fileName + "/ibdev":       deviceName + "\n",
		verbs + "/" + fileName + "/abi_version": "1\n",
	}
	for i := range gidEntries {
		all[fmt.Sprintf("%s/gid_attrs/types/%d", port, i)] = "RoCE v2\n"
	}
	return all
}

// filesFolder is the folder with the files, in the folder of the libraries.
const filesFolder = "files"

// writeFiles writes the files of deviceFiles, below the folder of the
// libraries. Running programs may read the files, so it replaces each file as a
// whole, and leaves a file alone that has the right text. The files in
// /dev/infiniband are links to /dev/null: programs on the device in user space
// only look whether they exist.
func writeFiles(folder string) error {
	next := filepath.Join(folder, ".file")
	folder = filepath.Join(folder, filesFolder)
	for path, text := range deviceFiles() {
		path = filepath.Join(folder, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if before, err := os.ReadFile(path); err == nil && string(before) == text {
			continue
		}
		if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
			return err
		}
		if err := os.Rename(next, path); err != nil {
			return err
		}
	}
	dev := filepath.Join(folder, "dev", "infiniband")
	if err := os.MkdirAll(dev, 0o755); err != nil {
		return err
	}
	for _, name := range []string{fileName, "rdma_cm"} {
		if err := os.Symlink(os.DevNull, filepath.Join(dev, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}
