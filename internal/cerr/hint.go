// SPDX-License-Identifier: Apache-2.0

package cerr

import "syscall"

// call is a C function and the errno with which it failed.
type call struct {
	op    string
	errno syscall.Errno
}

// noDMABufs is the failure of a device, or its driver, that cannot use a DMA
// buffer.
var noDMABufs = call{"ibv_reg_dmabuf_mr", syscall.EOPNOTSUPP}

// looks has a function for calls whose failure the state of the machine may
// explain. The function returns a hint about the cause, or "" if it finds none.
// For causes that depend on more than the function and the errno, packages
// ibverbs and rdmacm find the hint themselves.
var looks = map[call]func(machine) string{
	{"ibv_get_device_list", syscall.ENOSYS}: machine.module,
	{"rdma_get_devices", syscall.ENODEV}:    machine.device,
	{"rdma_create_id", syscall.ENODEV}:      machine.device,
	{"rdma_getaddrinfo", syscall.ENODEV}:    machine.device,
	// If a file in /dev/infiniband cannot be opened, the libraries try
	// another path. So the errno is ENOENT even if permission is missing.
	{"ibv_open_device", syscall.ENOENT}:           machine.access,
	{"ibv_open_device", syscall.EACCES}:           machine.access,
	{"ibv_open_device", syscall.EPERM}:            machine.access,
	{"ibv_open_device", syscall.EAGAIN}:           machine.handles,
	{"rdma_create_event_channel", syscall.ENODEV}: machine.device,
	{"rdma_create_event_channel", syscall.ENOENT}: machine.access,
	{"rdma_create_event_channel", syscall.EACCES}: machine.access,
	{"rdma_create_event_channel", syscall.EPERM}:  machine.access,
	noDMABufs: machine.dmabuf,

	// For these calls, the machine may show no cause. If it shows none, the
	// hint names verbena doctor.
	{"ibv_reg_mr", syscall.ENOMEM}:               machine.unknown,
	{"ibv_reg_mr", syscall.EFAULT}:               machine.unknown,
	{"ibv_reg_mr", syscall.EAGAIN}:               machine.unknown,
	{"ibv_reg_mr_iova", syscall.ENOMEM}:          machine.unknown,
	{"ibv_reg_mr_iova", syscall.EFAULT}:          machine.unknown,
	{"ibv_reg_mr_iova", syscall.EAGAIN}:          machine.unknown,
	{"ibv_reg_mr_ex", syscall.ENOMEM}:            machine.unknown,
	{"ibv_reg_mr_ex", syscall.EFAULT}:            machine.unknown,
	{"ibv_create_cq", syscall.ENOMEM}:            machine.unknown,
	{"ibv_create_cq", syscall.EAGAIN}:            machine.unknown,
	{"ibv_create_qp", syscall.ENOMEM}:            machine.unknown,
	{"ibv_create_qp", syscall.EAGAIN}:            machine.unknown,
	{"ibv_create_qp_ex", syscall.ENOMEM}:         machine.unknown,
	{"ibv_create_qp_ex", syscall.EAGAIN}:         machine.unknown,
	{"ibv_create_srq", syscall.ENOMEM}:           machine.unknown,
	{"ibv_create_srq", syscall.EAGAIN}:           machine.unknown,
	{"ibv_create_srq_ex", syscall.ENOMEM}:        machine.unknown,
	{"ibv_create_srq_ex", syscall.EAGAIN}:        machine.unknown,
	{"ibv_alloc_pd", syscall.ENOMEM}:             machine.unknown,
	{"ibv_alloc_pd", syscall.EAGAIN}:             machine.unknown,
	{"rdma_create_qp", syscall.ENOMEM}:           machine.unknown,
	{"rdma_create_qp", syscall.EAGAIN}:           machine.unknown,
	{"rdma_create_qp_ex", syscall.ENOMEM}:        machine.unknown,
	{"rdma_create_qp_ex", syscall.EAGAIN}:        machine.unknown,
	{"rdma_bind_addr", syscall.ENODEV}:           machine.unknown,
	{"rdma_bind_addr", syscall.EADDRNOTAVAIL}:    machine.unknown,
	{"rdma_resolve_addr", syscall.ENODEV}:        machine.unknown,
	{"rdma_resolve_addr", syscall.ENETUNREACH}:   machine.unknown,
	{"rdma_resolve_addr", syscall.EADDRNOTAVAIL}: machine.unknown,
	{"rdma_resolve_route", syscall.ENODEV}:       machine.unknown,
	{"rdma_resolve_route", syscall.EINVAL}:       machine.unknown,
}

// The hints of this package.
const (
	noModule = "the kernel has no RDMA support loaded; load the modules ib_uverbs and rdma_ucm" + Doctor
	noDevice = "no RDMA device that can be opened; give access to /dev/infiniband, load the device's driver, " +
		"or make a Soft-RoCE device with: rdma link add rxe0 type rxe netdev ETH; a program that imports package softroce " +
		"needs none of this with VERBENA_DEVICE=soft" + Doctor
	noAccess    = "no access to /dev/infiniband" + Doctor
	noDMABuf    = "the device's driver has no regions of DMA buffers" + Doctor
	unmappable  = "the device is part of the program, and so needs a DMA buffer that the processor can map: a GPU's driver may map none" + Doctor
	oldKernel   = "regions of DMA buffers need Linux 5.12 or later" + Doctor
	notMapped   = "the memory is not mapped" + Doctor
	notReadable = "the processor may not read the memory, which may be a GPU's: that is registered with RegisterDMABuf, or needs its driver's module for peer memory, such as nvidia_peermem" + Doctor
	notWritable = "the memory may not be written" + Doctor
	sharedFile  = "the memory is a file's (MAP_SHARED)" + Doctor
	ofDevice    = "the memory is a device's: that of a GPU is registered with RegisterDMABuf, or needs its driver's module for peer memory, such as nvidia_peermem" + Doctor
)

// Doctor is the end of the texts of errors whose cause is the setup of the
// machine. It names the program that diagnoses the setup.
const Doctor = "; verbena doctor says more"

// unsure is the hint if the machine shows no cause.
const unsure = "verbena doctor says more"

// InProgram records that the device is part of the program. The limits of the
// machine do not apply to such a device.
func InProgram() { inProgram.Store(true) }

// IsInProgram reports whether the device is part of the program.
func IsInProgram() bool { return inProgram.Load() }

// hint returns a hint about the cause of a failed call, or "".
func hint(op string, errno syscall.Errno) string {
	if errno == syscall.EMFILE { // checked even for a device in the program, which needs files, too
		return orUnsure(here.openFiles())
	}
	look := looks[call{op, errno}]
	if look == nil {
		return ""
	}
	if inProgram.Load() {
		if (call{op, errno}) == noDMABufs {
			return unmappable
		}
		return unsure
	}
	return orUnsure(look(here))
}

// orUnsure returns found, or unsure if found is empty.
func orUnsure(found string) string {
	if found == "" {
		return unsure
	}
	return found
}

// Hint returns what may solve the problem, or "" if that is not known.
func (e *Error) Hint() string { return e.hint }
