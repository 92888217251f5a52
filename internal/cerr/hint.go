// SPDX-License-Identifier: Apache-2.0

package cerr

import "syscall"

// hints say what a user can do about an errno of a C function.
var hints = map[string]map[syscall.Errno]string{
	"ibv_get_device_list": {syscall.ENOSYS: noModule},
	"ibv_reg_mr":          {syscall.ENOMEM: memlock, syscall.EFAULT: noPages},
	"ibv_reg_mr_iova":     {syscall.ENOMEM: memlock, syscall.EFAULT: noPages},
	"ibv_reg_mr_ex":       {syscall.ENOMEM: memlock, syscall.EFAULT: noPages},
	"ibv_reg_dmabuf_mr":   {syscall.EOPNOTSUPP: noDMABuf},
	"ibv_create_cq":       {syscall.ENOMEM: memlock},
	"ibv_create_qp":       {syscall.ENOMEM: memlock},
	"ibv_create_qp_ex":    {syscall.ENOMEM: memlock},
	"ibv_create_srq":      {syscall.ENOMEM: memlock},
	"ibv_create_srq_ex":   {syscall.ENOMEM: memlock},
	"rdma_create_qp":      {syscall.ENOMEM: memlock},
	"rdma_create_qp_ex":   {syscall.ENOMEM: memlock},
	"rdma_get_devices":    {syscall.ENODEV: noDevice},
	"rdma_create_id":      {syscall.ENODEV: noDevice},
	"rdma_getaddrinfo":    {syscall.ENODEV: noDevice},
	// If a file in /dev/infiniband cannot be opened, the libraries try another
	// place. The errno is then ENOENT even if permission is missing.
	"ibv_open_device": {syscall.ENOENT: noAccess, syscall.EACCES: noAccess, syscall.EPERM: noAccess},
	"rdma_create_event_channel": {
		syscall.ENODEV: noDevice, syscall.ENOENT: noAccess, syscall.EACCES: noAccess, syscall.EPERM: noAccess,
	},
	"rdma_bind_addr": {
		syscall.ENODEV:        noAddress,
		syscall.EADDRNOTAVAIL: noAddress + ", or the port is taken: an id at every address excludes ids at one, and the other way round",
		syscall.EADDRINUSE:    "another listener has this address and port",
	},
	"rdma_listen": {syscall.EADDRINUSE: "another listener has this address and port"},
	"rdma_resolve_addr": {
		syscall.ENODEV:        noRoute,
		syscall.ENETUNREACH:   noRoute,
		syscall.EADDRNOTAVAIL: "no RDMA device has the local address",
	},
	"rdma_resolve_route": {
		syscall.ENODEV: "no RDMA device is there; loopback addresses such as 127.0.0.1 have none, so use the address of a device" + Doctor,
		syscall.EINVAL: "the MTU of the network interface may be too small: RoCE needs 352 bytes" + Doctor,
	},
}

const (
	noModule = "the kernel has no RDMA support loaded; load the modules ib_uverbs and rdma_ucm" + Doctor
	noDevice = "no RDMA device that can be opened; give access to /dev/infiniband, load the device's driver, " +
		"or make a Soft-RoCE device with: rdma link add rxe0 type rxe netdev ETH; a program that imports package softroce " +
		"needs none of this with VERBENA_DEVICE=soft" + Doctor
	noAccess = "no access to /dev/infiniband" + Doctor
	memlock  = "the limit on locked memory may be too low; see ulimit -l" + Doctor
	noPages  = "the memory is not mapped, may not be written, or is a device's: " +
		"that of a GPU is registered with RegisterDMABuf, or needs its driver's module for peer memory, such as nvidia_peermem" + Doctor
	noDMABuf  = "regions of DMA buffers need a device whose driver has them, and Linux 5.12 or later" + Doctor
	noAddress = "no RDMA device has this address"
	noRoute   = "no RDMA device on the route to this address" + Doctor
)

// Doctor ends the texts of errors that the setup of the machine causes. It
// names the program that diagnoses them.
const Doctor = "; verbena doctor says more"

// Hint says what to do about the error. It returns "" if that is unknown.
func (e *Error) Hint() string { return hints[e.Op][e.Errno] }
