// SPDX-License-Identifier: Apache-2.0

package soft

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
)

// gidEntries is the number of GIDs of a device.
const gidEntries = 256

// usual are the names of the devices if VERBENA_DEVICES has none.
var usual = []string{"soft0"}

// chosen returns the names of the devices in VERBENA_DEVICES. It returns false
// if there are none, or if one cannot be the name of a folder: the library then
// says what is wrong.
func chosen() (names []string, ok bool) {
	text := os.Getenv("VERBENA_DEVICES")
	for part := range strings.SplitSeq(text, ";") {
		name, _, _ := strings.Cut(part, "=")
		if name == "." || !filepath.IsLocal(name) || strings.Contains(name, "/") {
			return nil, false
		}
		names = append(names, name)
	}
	return names, true
}

// fileName returns the name of a device's file in /dev/infiniband. number is
// the place of the device, counted from 0.
func fileName(number int) string { return fmt.Sprintf("uverbs%d", number) }

// deviceFiles maps the paths of files to their texts. Programs on devices in
// user space with these names see the files in place of the system's files
// about RDMA devices. GUIDs and GIDs differ from process to process, so there
// are no files for them: programs ask libibverbs for those.
func deviceFiles(names []string) map[string]string {
	const verbs = "sys/class/infiniband_verbs"
	all := map[string]string{verbs + "/abi_version": "6\n"}
	for i, name := range names {
		device := "sys/class/infiniband/" + name
		port := device + "/ports/1"
		maps.Copy(all, map[string]string{
			device + "/node_type": "1: CA\n",
			device + "/node_desc": name + "\n",

			port + "/link_layer":     "Ethernet\n",
			port + "/state":          "4: ACTIVE\n",
			port + "/phys_state":     "5: LinkUp\n",
			port + "/lid":            "0x0\n",
			port + "/lid_mask_count": "0\n",
			port + "/sm_lid":         "0x0\n",
			port + "/sm_sl":          "0\n",
			port + "/pkeys/0":        "0xffff\n",

			verbs + "/" + fileName(i) + "/ibdev":       name + "\n",
			verbs + "/" + fileName(i) + "/abi_version": "1\n",
		})
		for g := range gidEntries {
			all[fmt.Sprintf("%s/gid_attrs/types/%d", port, g)] = "RoCE v2\n"
		}
	}
	return all
}

// filesVariable is the environment variable that names the folder with the
// files for libverbena-files.so, if that is not the one beside it.
const filesVariable = "VERBENA_FILES"

// filesOf returns a folder with the files of devices, in the cache.
func filesOf(names []string) (string, error) {
	sum := sha256.Sum256([]byte(strings.Join(names, ";")))
	folder, err := cacheFolder("devices-" + hex.EncodeToString(sum[:6]))
	if err != nil {
		return "", fmt.Errorf("no folder for the files of the devices: %w", err)
	}
	unlock, err := lock(filepath.Join(folder, lockFile))
	if err != nil {
		return "", err
	}
	defer unlock()
	return filepath.Join(folder, filesFolder), writeFiles(folder, names)
}

// lockFile is the file that a process locks while it writes to a folder.
const lockFile = ".lock"

// cacheFolder returns a folder that this process can write: in the user's cache
// or, where there is none, as for services, or where it cannot be written, in a
// folder for temporary files that only this user can write.
func cacheFolder(name string) (string, error) {
	cache, err := os.UserCacheDir()
	if err == nil {
		folder := filepath.Join(cache, "verbena", name)
		if err = writable(folder); err == nil {
			return folder, nil
		}
	}
	temporary, second := temporaryFolder()
	if second == nil {
		folder := filepath.Join(temporary, name)
		if second = writable(folder); second == nil {
			return folder, nil
		}
	}
	return "", fmt.Errorf("%w; and %w", err, second)
}

// writable makes the folder if there is none. It fails if this process cannot
// write there.
func writable(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(folder, lockFile), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// temporaryFolder returns this program's folder for temporary files, which only
// this user can write.
func temporaryFolder() (string, error) {
	folder := filepath.Join(os.TempDir(), fmt.Sprintf("verbena-%d", os.Geteuid()))
	if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	if !isOwn(folder) {
		return "", fmt.Errorf("others than this user can write %s", folder)
	}
	return folder, nil
}

// filesFolder is the folder with the files, in the folder of the libraries.
const filesFolder = "files"

// writeFiles writes the files of deviceFiles into a folder in the given one.
// Running programs may read the files, so it replaces each file as a whole, and
// leaves a file alone that has the right text. The files in /dev/infiniband are
// links to /dev/null: programs on the device in user space only look whether
// they exist.
func writeFiles(folder string, names []string) error {
	next := filepath.Join(folder, ".file")
	folder = filepath.Join(folder, filesFolder)
	for path, text := range deviceFiles(names) {
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
	all := []string{"rdma_cm"}
	for i := range names {
		all = append(all, fileName(i))
	}
	for _, name := range all {
		if err := os.Symlink(os.DevNull, filepath.Join(dev, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}
