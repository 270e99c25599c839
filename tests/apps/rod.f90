! Heat in a rod in Fortran, which checkpoints itself by the module holdfast_objects: an array of two dimensions, a
! scalar, versions in parts, errors with a text. Started again it goes on with the newest version. `rod STEPS OPTIONS`
program rod
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: error_unit, int64
    use holdfast_objects
    implicit none
    integer, parameter :: width = 100
    real(c_double), target :: field(width, width), other(width, width)
    integer(c_long_long), target :: step
    integer(c_long_long) :: version, steps
    integer(c_size_t) :: bytes
    character(200) :: words
    type(holdfast_set) :: set
    integer :: row, column
    integer(int64) :: total

    call get_command_argument(1, words)
    read (words, *) steps
    call get_command_argument(2, words)
    set = holdfast_open("a/b", options=trim(words))
    call must(.not. holdfast_is_open(set), "a name that is none")
    call must(index(holdfast_message(), "a/b") > 0, "the message of that")
    set = holdfast_open("rod", rank=0, ranks=1, options=trim(words))
    call must(holdfast_is_open(set), "open")
    bytes = storage_size(field) / 8 * size(field, kind=c_size_t)
    call must(holdfast_region(set, "field", field, bytes, 8_c_size_t) == 0, "region")
    call must(holdfast_region(set, "step", step, 8_c_size_t) == 0, "region of a scalar")

    step = 0
    do column = 1, width
        do row = 1, width
            field(row, column) = mod(row * 31 + column * 17, 1009)
        end do
    end do
    version = holdfast_newest(set)
    if (version >= 0) then
        call must(holdfast_size(set, version, "field") == int(bytes, c_long_long), "size")
        call must(holdfast_size(set, version, "none") == HOLDFAST_E_NOT_FOUND, "size of what is not there")
        call must(holdfast_restore_into(set, version, "field", other, bytes) == 0, "restore into another array")
        call must(holdfast_restore_into(set, version, "field", other, 8_c_size_t) == HOLDFAST_E_SIZE, "too small")
        call must(holdfast_restore(set, version) == 0, "restore")
        call must(step == version .and. all(abs(field - other) <= 0), "what was restored")
    end if
    write (error_unit, '(a, i0)') "from ", step
    flush (error_unit)
    do while (step < steps)
        field(2:width - 1, 2:width - 1) = 0.25d0 * (field(1:width - 2, 2:width - 1) + field(3:width, 2:width - 1) &
            + field(2:width - 1, 1:width - 2) + field(2:width - 1, 3:width))
        step = step + 1
        if (mod(step, 10_c_long_long) /= 0) cycle
        if (mod(step, 20_c_long_long) == 0) then
            call must(holdfast_put(set, step) == 0, "put")
        else
            call must(holdfast_begin(set, step) == 0, "begin")
            call must(holdfast_put_some(set, ["step "]) == 0, "put some")
            call must(holdfast_put_rest(set) == 0, "put the rest")
            call must(holdfast_end(set) == 0, "end")
        end if
    end do
    call must(holdfast_wait(set) == 0, "wait")
    call must(holdfast_finished(set) == 1, "finished")
    call must(holdfast_newest(set, step) < step, "the one before")
    total = 0
    do column = 1, width
        do row = 1, width
            total = ieor(ishftc(total, 7), transfer(field(row, column), total))
        end do
    end do
    print '(i0, a, z16.16)', step, " steps: ", total
    call holdfast_close(set)

contains

    subroutine must(done, what)
        logical, intent(in) :: done
        character(*), intent(in) :: what
        if (done) return
        print '(a, i0, 4a)', "FAIL step ", step, " ", what, ": ", holdfast_message()
        stop 1
    end subroutine
end program
