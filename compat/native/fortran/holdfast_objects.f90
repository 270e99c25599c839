! Versions of a program's own arrays in a Holdfast store: the part "Objects" of holdfast.h for Fortran 2018, by
! iso_c_binding. Compiled with the program, since module files are of one compiler:
!
!     gfortran -c $(pkg-config --variable=includedir holdfast-client)/holdfast_objects.f90
!     gfortran app.f90 holdfast_objects.o -lholdfast-client
!
!     use holdfast_objects
!     type(holdfast_set) :: set
!     set = holdfast_open("heat", rank, ranks, "store=/scratch/me;keep=3")
!     if (.not. holdfast_is_open(set)) error stop holdfast_message()
!     if (holdfast_region(set, "field", field, storage_size(field) / 8 * size(field, kind=c_size_t)) /= 0) ...
!     version = holdfast_newest(set)
!     if (version >= 0) error = holdfast_restore(set, version)
!
! What each function does and returns is said in holdfast.h: 0 or a number, below 0 on errors, whose text
! holdfast_message() has. Memory that is registered, arrays of any rank and scalars, has the attribute target, is in one
! piece, and stays where it is: of a section with gaps the compiler would make a copy, and that would be registered.
module holdfast_objects
    use, intrinsic :: iso_c_binding
    implicit none
    private

    public :: holdfast_set, holdfast_open, holdfast_is_open, holdfast_close, holdfast_message
    public :: holdfast_region, holdfast_unregister
    public :: holdfast_put, holdfast_begin, holdfast_put_some, holdfast_put_rest, holdfast_end, holdfast_abandon
    public :: holdfast_wait, holdfast_finished, holdfast_newest, holdfast_size
    public :: holdfast_restore, holdfast_restore_into, holdfast_restored
    public :: holdfast_will_restore, holdfast_start, holdfast_discard, holdfast_drop

    integer(c_int), parameter, public :: HOLDFAST_E_ARGUMENT = -5, HOLDFAST_E_NOT_FOUND = -7, HOLDFAST_E_SIZE = -8
    integer(c_int), parameter, public :: HOLDFAST_E_FAILED = -4, HOLDFAST_E_SERVER = -10, HOLDFAST_E_STATE = -11
    integer(c_int), parameter, public :: HOLDFAST_E_FORKED = -12

    ! One rank of a set of objects.
    type :: holdfast_set
        private
        type(c_ptr) :: handle = c_null_ptr
    end type

    interface
        function c_open(name, rank, ranks, options) bind(C, name="holdfast_open") result(handle)
            import :: c_char, c_int, c_ptr
            character(kind=c_char), intent(in) :: name(*), options(*)
            integer(c_int), value :: rank, ranks
            type(c_ptr) :: handle
        end function
        subroutine c_close(handle) bind(C, name="holdfast_close")
            import :: c_ptr
            type(c_ptr), value :: handle
        end subroutine
        function c_error(handle) bind(C, name="holdfast_error") result(text)
            import :: c_ptr
            type(c_ptr), value :: handle
            type(c_ptr) :: text
        end function
        function c_strlen(text) bind(C, name="strlen") result(length)
            import :: c_ptr, c_size_t
            type(c_ptr), value :: text
            integer(c_size_t) :: length
        end function
        function c_region(handle, key, memory, bytes, element) bind(C, name="holdfast_region") result(error)
            import :: c_char, c_int, c_ptr, c_size_t
            type(c_ptr), value :: handle, memory
            character(kind=c_char), intent(in) :: key(*)
            integer(c_size_t), value :: bytes, element
            integer(c_int) :: error
        end function
        function c_unregister(handle, key) bind(C, name="holdfast_unregister") result(error)
            import :: c_char, c_int, c_ptr
            type(c_ptr), value :: handle
            character(kind=c_char), intent(in) :: key(*)
            integer(c_int) :: error
        end function
        function c_put_some(handle, keys, count) bind(C, name="holdfast_put_some") result(error)
            import :: c_int, c_ptr, c_size_t
            type(c_ptr), value :: handle
            type(c_ptr), intent(in) :: keys(*)
            integer(c_size_t), value :: count
            integer(c_int) :: error
        end function
        function c_newest(handle, below) bind(C, name="holdfast_newest") result(version)
            import :: c_long_long, c_ptr
            type(c_ptr), value :: handle
            integer(c_long_long), value :: below
            integer(c_long_long) :: version
        end function
        function c_size(handle, version, key) bind(C, name="holdfast_size") result(bytes)
            import :: c_char, c_long_long, c_ptr
            type(c_ptr), value :: handle
            integer(c_long_long), value :: version
            character(kind=c_char), intent(in) :: key(*)
            integer(c_long_long) :: bytes
        end function
        function c_into(handle, version, key, memory, bytes) bind(C, name="holdfast_restore_into") result(error)
            import :: c_char, c_int, c_long_long, c_ptr, c_size_t
            type(c_ptr), value :: handle, memory
            integer(c_long_long), value :: version
            character(kind=c_char), intent(in) :: key(*)
            integer(c_size_t), value :: bytes
            integer(c_int) :: error
        end function
    end interface

    ! What takes a set and a version.
    abstract interface
        function of_version(handle, version) bind(C) result(error)
            import :: c_int, c_long_long, c_ptr
            type(c_ptr), value :: handle
            integer(c_long_long), value :: version
            integer(c_int) :: error
        end function
        function of_set(handle) bind(C) result(error)
            import :: c_int, c_ptr
            type(c_ptr), value :: handle
            integer(c_int) :: error
        end function
    end interface

    procedure(of_version), bind(C, name="holdfast_put") :: c_put
    procedure(of_version), bind(C, name="holdfast_begin") :: c_begin
    procedure(of_version), bind(C, name="holdfast_restore") :: c_restore
    procedure(of_version), bind(C, name="holdfast_will_restore") :: c_will_restore
    procedure(of_version), bind(C, name="holdfast_discard") :: c_discard
    procedure(of_set), bind(C, name="holdfast_put_rest") :: c_put_rest
    procedure(of_set), bind(C, name="holdfast_end") :: c_end
    procedure(of_set), bind(C, name="holdfast_abandon") :: c_abandon
    procedure(of_set), bind(C, name="holdfast_wait") :: c_wait
    procedure(of_set), bind(C, name="holdfast_finished") :: c_finished
    procedure(of_set), bind(C, name="holdfast_restored") :: c_restored
    procedure(of_set), bind(C, name="holdfast_start") :: c_start
    procedure(of_set), bind(C, name="holdfast_drop") :: c_drop

contains

    function holdfast_open(name, rank, ranks, options) result(set)
        character(*), intent(in) :: name
        integer, intent(in), optional :: rank, ranks
        character(*), intent(in), optional :: options
        type(holdfast_set) :: set
        integer(c_int) :: own, all
        own = 0
        all = 1
        if (present(rank)) own = int(rank, c_int)
        if (present(ranks)) all = int(ranks, c_int)
        if (present(options)) then
            set%handle = c_open(name // c_null_char, own, all, options // c_null_char)
        else
            set%handle = c_open(name // c_null_char, own, all, c_null_char)
        end if
    end function

    logical function holdfast_is_open(set)
        type(holdfast_set), intent(in) :: set
        holdfast_is_open = c_associated(set%handle)
    end function

    subroutine holdfast_close(set)
        type(holdfast_set), intent(inout) :: set
        call c_close(set%handle)
        set%handle = c_null_ptr
    end subroutine

    ! Why the last call of this thread that has failed did so.
    function holdfast_message() result(message)
        character(:), allocatable :: message
        type(c_ptr) :: text
        character(kind=c_char), pointer :: letters(:)
        integer :: at
        text = c_error(c_null_ptr)
        call c_f_pointer(text, letters, [c_strlen(text)])
        allocate (character(size(letters)) :: message)
        do at = 1, size(letters)
            message(at:at) = letters(at)
        end do
    end function

    ! `bytes`: of all of it; `element`: of one of its elements, if known.
    integer(c_int) function holdfast_region(set, key, memory, bytes, element) result(error)
        type(holdfast_set), intent(in) :: set
        character(*), intent(in) :: key
        type(*), intent(in), target, contiguous :: memory(..)
        integer(c_size_t), intent(in) :: bytes
        integer(c_size_t), intent(in), optional :: element
        error = c_region(set%handle, key // c_null_char, c_loc(memory), bytes, element_of(element))
    end function

    pure integer(c_size_t) function element_of(element)
        integer(c_size_t), intent(in), optional :: element
        element_of = 0
        if (present(element)) element_of = element
    end function

    integer(c_int) function holdfast_unregister(set, key) result(error)
        type(holdfast_set), intent(in) :: set
        character(*), intent(in) :: key
        error = c_unregister(set%handle, key // c_null_char)
    end function

    integer(c_int) function holdfast_put(set, version) result(error)
        type(holdfast_set), intent(in) :: set
        integer(c_long_long), intent(in) :: version
        error = c_put(set%handle, version)
    end function

    integer(c_int) function holdfast_begin(set, version) result(error)
        type(holdfast_set), intent(in) :: set
        integer(c_long_long), intent(in) :: version
        error = c_begin(set%handle, version)
    end function

    integer(c_int) function holdfast_put_some(set, keys) result(error)
        type(holdfast_set), intent(in) :: set
        character(*), intent(in) :: keys(:)
        character(len(keys) + 1, kind=c_char), target :: ended(size(keys))
        type(c_ptr) :: texts(size(keys))
        integer :: at
        do at = 1, size(keys)
            ended(at) = trim(keys(at)) // c_null_char
            texts(at) = c_loc(ended(at))
        end do
        error = c_put_some(set%handle, texts, int(size(keys), c_size_t))
    end function

    integer(c_int) function holdfast_put_rest(set) result(error)
        type(holdfast_set), intent(in) :: set
        error = c_put_rest(set%handle)
    end function

    integer(c_int) function holdfast_end(set) result(error)
        type(holdfast_set), intent(in) :: set
        error = c_end(set%handle)
    end function

    integer(c_int) function holdfast_abandon(set) result(error)
        type(holdfast_set), intent(in) :: set
        error = c_abandon(set%handle)
    end function

    integer(c_int) function holdfast_wait(set) result(error)
        type(holdfast_set), intent(in) :: set
        error = c_wait(set%handle)
    end function

    integer(c_int) function holdfast_finished(set) result(error)
        type(holdfast_set), intent(in) :: set
        error = c_finished(set%handle)
    end function

    ! Below this version, if one is said.
    integer(c_long_long) function holdfast_newest(set, below) result(version)
        type(holdfast_set), intent(in) :: set
        integer(c_long_long), intent(in), optional :: below
        ! HOLDFAST_ANY: all bits.
        integer(c_long_long) :: bound
        bound = -1
        if (present(below)) bound = below
        version = c_newest(set%handle, bound)
    end function

    integer(c_long_long) function holdfast_size(set, version, key) result(bytes)
        type(holdfast_set), intent(in) :: set
        integer(c_long_long), intent(in) :: version
        character(*), intent(in) :: key
        bytes = c_size(set%handle, version, key // c_null_char)
    end function

    integer(c_int) function holdfast_restore(set, version) result(error)
        type(holdfast_set), intent(in) :: set
        integer(c_long_long), intent(in) :: version
        error = c_restore(set%handle, version)
    end function

    integer(c_int) function holdfast_restore_into(set, version, key, memory, bytes) result(error)
        type(holdfast_set), intent(in) :: set
        integer(c_long_long), intent(in) :: version
        character(*), intent(in) :: key
        type(*), intent(inout), target, contiguous :: memory(..)
        integer(c_size_t), intent(in) :: bytes
        error = c_into(set%handle, version, key // c_null_char, c_loc(memory), bytes)
    end function

    integer(c_int) function holdfast_restored(set) result(error)
        type(holdfast_set), intent(in) :: set
        error = c_restored(set%handle)
    end function

    integer(c_int) function holdfast_will_restore(set, version) result(error)
        type(holdfast_set), intent(in) :: set
        integer(c_long_long), intent(in) :: version
        error = c_will_restore(set%handle, version)
    end function

    integer(c_int) function holdfast_start(set) result(error)
        type(holdfast_set), intent(in) :: set
        error = c_start(set%handle)
    end function

    integer(c_int) function holdfast_discard(set, version) result(error)
        type(holdfast_set), intent(in) :: set
        integer(c_long_long), intent(in) :: version
        error = c_discard(set%handle, version)
    end function

    integer(c_int) function holdfast_drop(set) result(error)
        type(holdfast_set), intent(in) :: set
        error = c_drop(set%handle)
    end function
end module
