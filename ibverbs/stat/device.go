// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Device is an RDMA device with its counters.
type Device struct {
	Name     string    `json:"name"`
	Ports    []Port    `json:"ports"`
	Counters []Counter `json:"counters"` // hw_counters of the whole device, which few drivers provide
}

// Port is a port of a device with its counters.
type Port struct {
	Port      int    `json:"port"`
	State     string `json:"state"`      // DOWN, INIT, ARMED, ACTIVE, ACTIVE_DEFER; empty if the kernel does not say
	LinkLayer string `json:"link_layer"` // InfiniBand, Ethernet
	// Rate is the rate of the link in bits per second. It is meaningless
	// for a device in software.
	Rate int64 `json:"rate_bits_per_second"`
	// Lifespan is the time for which the kernel caches values of hw_counters.
	// It is 0 if there are no hw_counters.
	Lifespan time.Duration `json:"lifespan_nanoseconds"`
	Counters []Counter     `json:"counters"`
}

// Counter returns the port's counter with a name, and reports whether there is
// one. If several groups have the name, Standard comes first, then Hardware.
func (p Port) Counter(name string) (Counter, bool) {
	i := slices.IndexFunc(p.Counters, func(c Counter) bool { return c.Name == name })
	if i < 0 {
		return Counter{}, false
	}
	return p.Counters[i], true
}

// Sysfs is the directory where sysfs is mounted. In a container, the host's
// sysfs may be mounted elsewhere than at Default.
type Sysfs string

// Default is the directory where systems mount sysfs.
const Default Sysfs = "/sys"

// Devices returns the devices with their counters, sorted by name. The result
// is empty if the kernel has no RDMA. Devices blocks only while the kernel asks
// the devices for their counters. The result lacks devices that are removed
// during the call. If a device cannot be read, Devices returns the others and
// an error. Devices may be called concurrently.
func (s Sysfs) Devices() ([]Device, error) {
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	all, errs := []Device{}, []error{}
	for _, name := range names {
		d, err := s.Device(name)
		switch {
		case err == nil:
			all = append(all, d)
		case !gone(err):
			errs = append(errs, err)
		}
	}
	return all, errors.Join(errs...)
}

// names returns the names of the devices.
func (s Sysfs) names() ([]string, error) {
	entries, err := os.ReadDir(s.path())
	if errors.Is(err, fs.ErrNotExist) { // the modules of RDMA are not loaded; but there must be a sysfs
		_, err = os.Stat(filepath.Join(string(s), "class"))
	}
	if err != nil {
		return nil, fmt.Errorf("stat: list the RDMA devices: %w", err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

func (s Sysfs) path(of ...string) string {
	return filepath.Join(append([]string{string(s), "class", "infiniband"}, of...)...)
}

// Device returns the device with a name and its counters. If there is no such
// device, the error matches fs.ErrNotExist.
func (s Sysfs) Device(name string) (Device, error) {
	if name == "" || name != filepath.Base(name) || name == ".." || name == "." {
		return Device{}, fmt.Errorf("stat: %q is not a device name: %w", name, fs.ErrNotExist)
	}
	d := Device{Name: name, Ports: []Port{}, Counters: []Counter{}}
	ports, err := os.ReadDir(s.path(name, "ports"))
	if err != nil {
		return Device{}, failed(name, err)
	}
	if d.Counters, _, err = group(s.path(name), Hardware); err != nil {
		return Device{}, failed(name, err)
	}
	for _, e := range ports {
		number, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p, err := readPort(s.path(name, "ports", e.Name()), number)
		if err != nil {
			return Device{}, failed(name, err)
		}
		d.Ports = append(d.Ports, p)
	}
	slices.SortFunc(d.Ports, func(a, b Port) int { return cmp.Compare(a.Port, b.Port) })
	if _, err := os.Stat(s.path(name, "ports")); err != nil { // something may be missing because the device was removed
		return Device{}, failed(name, err)
	}
	return d, nil
}

func failed(device string, err error) error {
	return fmt.Errorf("stat: read the counters of %s: %w", device, err)
}

// gone reports whether err can be the result of the removal of a device.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) }

func readPort(path string, number int) (Port, error) {
	p := Port{Port: number, Counters: []Counter{}}
	for _, g := range []Group{Standard, Hardware, CMSent, CMRetried, CMTaken, CMRepeats} {
		counters, lifespan, err := group(path, g)
		if err != nil {
			return Port{}, err
		}
		p.Counters = append(p.Counters, counters...)
		p.Lifespan = max(p.Lifespan, lifespan)
	}
	// As in "4: ACTIVE".
	_, p.State, _ = strings.Cut(line(path, "state"), ": ")
	p.LinkLayer = line(path, "link_layer")
	// As in "100 Gb/sec (4X EDR)".
	gigabits, _, _ := strings.Cut(line(path, "rate"), " Gb/sec")
	if rate, err := strconv.ParseFloat(gigabits, 64); err == nil && rate > 0 && rate < 1e9 {
		p.Rate = int64(rate * 1e9)
	}
	return p, nil
}

// line returns the text of a file, or "" if it cannot be read.
func line(path ...string) string {
	b, _ := os.ReadFile(filepath.Join(path...))
	return strings.TrimSpace(string(b))
}

// group returns the counters in a directory, sorted by name, or none if there
// is no such directory. lifespan is the content of the file lifespan, which is
// a setting and not a counter.
func group(path string, g Group) (counters []Counter, lifespan time.Duration, err error) {
	folder := filepath.Join(path, string(g))
	files, err := os.ReadDir(folder)
	counters = []Counter{}
	if errors.Is(err, fs.ErrNotExist) {
		return counters, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(folder, f.Name()))
		if errors.Is(err, syscall.ENODEV) || errors.Is(err, fs.ErrPermission) {
			return nil, 0, err
		}
		if err != nil {
			continue // removed, or not supported by the device, for which drivers return errors such as EINVAL and EOPNOTSUPP
		}
		value, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
		switch {
		case err != nil: // such as "N/A (no PMA)"
		case f.Name() == "lifespan" && g == Hardware:
			lifespan = time.Duration(min(value, maxLifespan)) * time.Millisecond
		default:
			counters = append(counters, counter(g, f.Name(), value))
		}
	}
	return counters, lifespan, nil
}

// maxLifespan is the largest lifespan that the kernel allows, in milliseconds.
const maxLifespan = 10000
