// SPDX-License-Identifier: Apache-2.0

package testdevice

import (
	"cmp"
	"fmt"
	"os"
	"testing"
)

// TakesDevices says whether this kernel takes a Soft-RoCE device that is
// removed from its users, as it does with most hardware: from Linux 7.3 on.
// Older ones wait until all users have closed it.
func TakesDevices(t testing.TB) bool {
	t.Helper()
	return LinuxSince(t, 7, 3)
}

// RepeatsPackets says whether this kernel's Soft-RoCE may take the last packet
// of a message once more, for each receive that is posted, when the queue pair
// fails just then: from Linux 6.3 until 7.2. It crashes if that packet was not
// the only one of its message.
func RepeatsPackets() bool {
	major, minor, err := linux()
	return err == nil && compare(major, minor, 6, 3) >= 0 && compare(major, minor, 7, 2) < 0
}

// LinuxSince says whether this kernel is Linux major.minor or a later one.
func LinuxSince(t testing.TB, major, minor int) bool {
	t.Helper()
	hasMajor, hasMinor, err := linux()
	if err != nil {
		t.Fatal(err)
	}
	return compare(hasMajor, hasMinor, major, minor) >= 0
}

func compare(aMajor, aMinor, bMajor, bMinor int) int {
	return cmp.Or(cmp.Compare(aMajor, bMajor), cmp.Compare(aMinor, bMinor))
}

// linux returns this kernel's version.
func linux() (major, minor int, err error) {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return 0, 0, err
	}
	if _, err := fmt.Sscanf(string(release), "%d.%d", &major, &minor); err != nil {
		return 0, 0, fmt.Errorf("kernel %s: %w", release, err)
	}
	return major, minor, nil
}
